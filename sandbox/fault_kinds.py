"""What can be made to go wrong, as data: each kind of fault with its parameters.

A kind either lies in wait (`armed`: it strikes at the calls or the boots that it is for) or acts at once on instances
that run (`immediate`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One `name=value` of a kind.

    `selects`: it narrows what the fault strikes at (a pattern with * and ?, in any case), and stands for everything
    when it is not given; otherwise it says how the fault is done. `check`: whether a value is possible.
    """

    name: str
    allowed: str
    selects: bool = False
    required: bool = False
    check: Callable[[str], bool] = bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of fault. `count`: how often it strikes unless `count=` says otherwise; None: until it is disarmed."""

    name: str
    summary: str
    parameters: tuple[Parameter, ...] = ()
    count: int | None = 1
    when: Literal["armed", "immediate"] = "armed"

    def find_parameter(self, name: str) -> Parameter | None:
        """Its parameter of that name."""
        return next((parameter for parameter in self.parameters if parameter.name == name), None)


def is_whole(text: str) -> bool:
    """A whole number, 0 or more."""
    return text.isascii() and text.isdigit()


def is_number(text: str) -> bool:
    """A number, 0 or more, in decimals."""
    whole, _, part = text.partition(".")
    return is_whole(whole) and (not part or is_whole(part))


def is_share(text: str) -> bool:
    """A number from 0 to 1."""
    return is_number(text) and float(text) <= 1


ZONE = Parameter(name="zone", allowed="an availability zone, such as us-east-1a", selects=True)
TYPE = Parameter(name="type", allowed="an instance type, such as p4d.24xlarge or p4d.*", selects=True)
MARKET = Parameter(
    name="market",
    allowed="on-demand or spot",
    selects=True,
    check=lambda text: text in ("on-demand", "spot"),
)
SERVICE = Parameter(name="service", allowed="a service's name in signatures, such as ec2 or ssm", selects=True)
ACTION = Parameter(name="action", allowed="an API action, such as RunInstances or Describe*", selects=True)
OPERATION = Parameter(name="operation", allowed="an S3 operation, such as GetObject or *Upload*", selects=True)
KEY = Parameter(name="key", allowed="an object's key, such as digits/*", selects=True)
INSTANCE = Parameter(name="instance", allowed="an instance's id", required=True)
ONE = Parameter(name="a", allowed="an instance's id", required=True)
OTHER = Parameter(name="b", allowed="another instance's id", required=True)

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="capacity",
            summary="InsufficientInstanceCapacity once `free` more instances have been launched",
            parameters=(ZONE, TYPE, MARKET,
                        Parameter(name="free", allowed="how many are left to be had, 0 or more", check=is_whole)),
            count=None,
        ),
        Kind(
            name="vcpu-limit",
            summary="VcpuLimitExceeded (for spot MaxSpotInstanceCountExceeded), whatever the quotas are",
            parameters=(TYPE, MARKET),
            count=None,
        ),
        Kind(
            name="throttle",
            summary="RequestLimitExceeded for the next calls, or with rate= for that share of all calls",
            parameters=(SERVICE, ACTION,
                        Parameter(name="rate", allowed="the share of calls, 0 to 1", check=is_share),
                        Parameter(name="seed", allowed="which calls of that share: a whole number", check=is_whole)),
        ),
        Kind(
            name="unauthorized",
            summary="UnauthorizedOperation, as for a role that lacks a permission",
            parameters=(SERVICE, ACTION),
            count=None,
        ),
        Kind(name="internal-error", summary="InternalError, before anything is done", parameters=(SERVICE, ACTION)),
        Kind(
            name="lost-reply",
            summary="the call takes effect and the connection is closed without a reply",
            parameters=(SERVICE, ACTION),
        ),
        Kind(name="s3-503", summary="503 SlowDown from S3, before anything is done", parameters=(OPERATION, KEY)),
        Kind(
            name="s3-cut",
            summary="the connection is cut within the object's bytes, in whichever direction they go",
            parameters=(OPERATION, KEY,
                        Parameter(name="after_bytes", allowed="bytes let through; default 0", check=is_whole)),
        ),
        Kind(
            name="s3-flip",
            summary="one byte of the object's bytes is another, in whichever direction they go",
            parameters=(OPERATION, KEY,
                        Parameter(name="at_byte", allowed="which byte of those sent, from 0 on; default 0",
                                  check=is_whole)),
        ),
        Kind(name="no-boot", summary="the next instance's host never comes up", parameters=(ZONE, TYPE)),
        Kind(name="no-sshd", summary="the next instance's host comes up without sshd", parameters=(ZONE, TYPE)),
        Kind(
            name="kill",
            summary="the host's power is cut; its instance stops, as on lost hardware, unless EC2 takes no notice",
            parameters=(INSTANCE, Parameter(name="leaves", allowed="stopped, or running for as if nothing had happened",
                                            check=lambda text: text in ("stopped", "running"))),
            when="immediate",
        ),
        Kind(name="freeze", summary="all of the host's processes stand still", parameters=(INSTANCE,),
             when="immediate"),
        Kind(name="thaw", summary="a frozen host goes on", parameters=(INSTANCE,), when="immediate"),
        Kind(name="partition", summary="two hosts lose sight of each other", parameters=(ONE, OTHER),
             when="immediate"),
        Kind(name="heal", summary="ends a partition", parameters=(ONE, OTHER), when="immediate"),
        Kind(name="full-disk", summary="the host's disk is filled up", parameters=(INSTANCE,), when="immediate"),
        Kind(name="free-disk", summary="ends full-disk", parameters=(INSTANCE,), when="immediate"),
        Kind(
            name="link",
            summary="the host's link gets another bandwidth, in each direction",
            parameters=(INSTANCE, Parameter(name="mbit", allowed="Mbit/s; 0: no limit", required=True,
                                            check=is_number)),
            when="immediate",
        ),
        Kind(
            name="spot-notice",
            summary="a spot instance is told that it will be ended, and is",
            parameters=(INSTANCE, Parameter(name="after_s", allowed="seconds until its end; default 120",
                                            check=is_number)),
            when="immediate",
        ),
    )
}  # fmt: skip
