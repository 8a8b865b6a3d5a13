"""The users of EC2's images, and which of them a node lets in when it refuses the one that was asked for."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import paramiko

from bootstrap.host import Output
from provision.errors import ConnectError

# Ubuntu and the DLAMIs made of it; Amazon Linux, RHEL and SUSE; Debian (admin); and others by their names. root last:
# most images let it in only to be told another name.
IMAGE_USERS = (
    "ubuntu",
    "ec2-user",
    "admin",
    "debian",
    "rocky",
    "almalinux",
    "centos",
    "fedora",
    "cloud-user",
    "core",
    "bitnami",
    "root",
)
PROBE_TIMEOUT_S = 20.0
_OTHER_USER = re.compile(r'Please login as the user "([A-Za-z0-9._-]+)" rather than the user')
"""cloud-init's forced command for root (its setting disable_root_opts)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Which user the cluster's key opens; `complete`: all were tried, so that None means that there is none."""

    accepted: str | None
    complete: bool


def find_accepted_user(refused: str, try_user: Callable[[str], Output]) -> Probe:
    """Try the users of images other than the one that was refused, for PROBE_TIMEOUT_S at most.

    try_user: logs in as a user over a connection of its own and runs a command there; raises ConnectError.
    """
    deadline = time.monotonic() + PROBE_TIMEOUT_S
    for user in IMAGE_USERS:
        if user == refused:
            continue
        if time.monotonic() > deadline:
            return Probe(accepted=None, complete=False)
        try:
            output = try_user(user)
        except ConnectError as error:
            if isinstance(error.__cause__, paramiko.AuthenticationException):
                continue
            return Probe(accepted=None, complete=False)  # sshd penalises those who fail too often
        named = find_other_user(output)
        return Probe(accepted=named or user, complete=True)
    return Probe(accepted=None, complete=True)


def find_other_user(output: Output) -> str | None:
    """The user that an image names to those who log in as another one; None where it does not. Pure."""
    found = _OTHER_USER.search(output.stdout + output.stderr)
    return found.group(1) if found else None
