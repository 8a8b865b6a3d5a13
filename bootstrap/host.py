"""A node as ssh sees it, and what a command there printed."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A node as ssh sees it. `address` is where the user's machine reaches it, `private_ip` where the others do.

    spec: "" for a node of the cluster; for a host of the user's own, how he named it: "[user@]host[:port]". That has no
    instance id, and its name stands in the place of one. port: of its sshd; on nodes it is always 22.
    """

    name: str
    instance_id: str
    address: str
    private_ip: str
    user: str
    is_head: bool
    port: int = 22
    spec: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What a finished command printed."""

    stdout: str
    stderr: str
    exit_code: int
