"""A node as ssh sees it, and what a command there printed."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A node as ssh sees it. `address` is where the user's machine reaches it, `private_ip` where the others do."""

    name: str
    instance_id: str
    address: str
    private_ip: str
    user: str
    is_head: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What a finished command printed."""

    stdout: str
    stderr: str
    exit_code: int
