"""The keys for logging in to nodes: the cluster's private key here, and the head's own key for the other nodes.

The private key stays on this machine. The head's key is made on the head; the nodes accept it only from the head's
address, and only for commands.
"""

import hashlib
import os
import shlex
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import paramiko

from foundation.errors import ClusterError

LOST_HINT = "run this where the cluster was made, or cluster down, then cluster up"
MARK = "cluster-internal"


def load_private_key(path: Path) -> paramiko.PKey:
    """Read a private key in OpenSSH's format or PEM. Raises ClusterError, which says what is wrong with the file."""
    try:
        found = path.stat()
        if found.st_uid == os.getuid() and found.st_mode & 0o077:  # as OpenSSH refuses
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


def authorized_line(public_key: str, *, head_ip: str, mark: str = MARK) -> str:
    """The line of authorized_keys for the cluster's key (`type base64 comment`), which ends with `mark`. Pure."""
    key_type, key_base64 = public_key.split()[:2]
    return f'restrict,from="{head_ip}" {key_type} {key_base64} {mark}'


def known_hosts_text(keys: Mapping[str, tuple[str, str]]) -> str:
    """OpenSSH's known_hosts from address -> (key type, base64). Pure."""
    return "".join(f"{address} {key_type} {key}\n" for address, (key_type, key) in sorted(keys.items()))


def authorize_script(
    *, authorized: Sequence[str], line: str, known_hosts_sha256: str | None = None, known_hosts: str | None = None
) -> str:
    """The shell script that brings a node's authorized_keys, and the head's known hosts, up to date.

    authorized: the cluster's own lines there; known_hosts_sha256: of the head's known hosts. known_hosts: what they are
    to be, None on nodes other than the head. Empty when nothing is to be done. Pure.
    """
    lines = []
    if tuple(authorized) != (line,):
        lines += [
            "keys=$HOME/.ssh/authorized_keys",
            f'{{ sed {shlex.quote(f"/ {MARK}$/d")} "$keys"; echo {shlex.quote(line)}; }} >"$keys.new"',
            'mv "$keys.new" "$keys"',
        ]
    if known_hosts is not None and known_hosts_sha256 != hashlib.sha256(known_hosts.encode()).hexdigest():
        lines += [
            f'printf %s {shlex.quote(known_hosts)} >"$HOME/.cluster/ssh/known_hosts.new"',
            'mv "$HOME/.cluster/ssh/known_hosts.new" "$HOME/.cluster/ssh/known_hosts"',
        ]
    return "\n".join(["set -eu", "umask 077", *lines, ""]) if lines else ""
