"""The cluster's private key, as ssh needs it: there, whole, without a passphrase, and nobody else's to read."""

import os
import stat
from pathlib import Path

import paramiko

from provision.errors import ClusterError

LOST_HINT = "run this where the cluster was made, or cluster down, then cluster up"


def load_private_key(path: Path) -> paramiko.PKey:
    """Read a private key in OpenSSH's format or PEM. Raises ClusterError, which says what is wrong with the file."""
    try:
        found = path.stat()
        if found.st_uid == os.getuid() and found.st_mode & 0o077:  # what OpenSSH refuses, and for its reason
            raise ClusterError(
                f"{path}: others than you may read this private key (mode {stat.S_IMODE(found.st_mode):04o})",
                hint=f"chmod 600 '{path}'; if somebody may have read it: cluster down, then cluster up",
            )
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        raise ClusterError(f"{path}: the cluster's private key is not there", hint=LOST_HINT) from None
    except OSError as error:
        raise ClusterError(f"{path}: the private key cannot be read: {error.strerror}", hint=LOST_HINT) from error
    except TypeError:  # cryptography's, for a key with a passphrase when it was given none
        raise ClusterError(
            f"{path}: this private key has a passphrase", hint=f"ssh-keygen -p -N '' -f '{path}' takes it off"
        ) from None
    except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise ClusterError(f"{path}: damaged, or not a private key", hint=LOST_HINT) from error
