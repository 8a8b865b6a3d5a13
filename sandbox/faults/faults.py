"""Faults on demand: what is armed, when it strikes, and when it is spent.

A fault is written `KIND name=value ... [count=K]`, in cluster.toml and on the command line alike. Every one is
deterministic: it strikes at the next K calls that it is for, or at those that its seed chooses.
"""

import difflib
import random
import shlex
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
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


class FaultError(ValueError):
    """A fault is written wrongly, or is not there; the message says what is allowed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A fault. `left`: how often it will still strike, None for as long as it is armed. `struck`: how often it has.

    `id` is empty until it is armed, and for the immediate kinds, which never are.
    """

    kind: str
    parameters: Mapping[str, str]
    left: int | None
    id: str = ""
    struck: int = 0

    @property
    def text(self) -> str:
        """As it is written."""
        return " ".join((self.kind, *(f"{name}={value}" for name, value in self.parameters.items())))

    def matches(self, context: Mapping[str, str]) -> bool:
        """Whether it is for what the context describes; a parameter that is not given is for everything."""
        kind = KINDS[self.kind]
        return all(
            fnmatchcase(context.get(parameter.name, "").lower(), self.parameters[parameter.name].lower())
            for parameter in kind.parameters
            if parameter.selects and parameter.name in self.parameters
        )


def parse_fault(text: str) -> Fault:
    """`KIND name=value ... [count=K]` as a fault that is not yet armed. Pure. Raises FaultError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise FaultError(f"{text!r}: {error}") from None
    if not words:
        raise FaultError(f"a fault begins with its kind: {', '.join(KINDS)}")
    kind = KINDS.get(words[0])
    if kind is None:
        nearest = difflib.get_close_matches(words[0], KINDS, n=1)
        suggestion = f'; did you mean "{nearest[0]}"?' if nearest else ""
        raise FaultError(f'there is no fault "{words[0]}"{suggestion} (known: {", ".join(KINDS)})')
    values: dict[str, str] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals:
            raise FaultError(f'{kind.name}: "{word}" is not of the form name=value; {describe_parameters(kind)}')
        if name in values:
            raise FaultError(f"{kind.name}: {name}= is given twice")
        values[name] = value
    count = values.pop("count", None)
    _check_values(kind, values)
    left = _parse_count(kind, count, for_a_rate="rate" in values)
    return Fault(kind=kind.name, parameters=values, left=left)


def _parse_count(kind: Kind, text: str | None, *, for_a_rate: bool) -> int | None:
    if text is None:
        # A share of the calls is of all of them, until it is disarmed.
        return None if for_a_rate else kind.count
    if kind.when == "immediate":
        raise FaultError(f"{kind.name}: happens once and at once, so it takes no count=")
    if text == "all":
        return None
    if not is_whole(text) or int(text) == 0:
        raise FaultError(f'{kind.name}: count={text}: a whole number from 1 on, or "all" until it is disarmed')
    return int(text)


def _check_values(kind: Kind, values: Mapping[str, str]) -> None:
    for name, value in values.items():
        parameter = kind.find_parameter(name)
        if parameter is None:
            raise FaultError(f"{kind.name}: there is no {name}=; {describe_parameters(kind)}")
        if not value or not parameter.check(value):
            raise FaultError(f"{kind.name}: {name}={value}: is allowed: {parameter.allowed}")
    missing = [parameter for parameter in kind.parameters if parameter.required and parameter.name not in values]
    if missing:
        raise FaultError(f"{kind.name}: {missing[0].name}= is missing: {missing[0].allowed}")
    if "seed" in values and "rate" not in values:
        raise FaultError(f"{kind.name}: seed= says which calls of a rate=, and there is none")


def describe_parameters(kind: Kind) -> str:
    """What a kind takes, for people. Pure."""
    names = [f"{parameter.name}=" for parameter in kind.parameters]
    return f"{kind.name} takes {', '.join([*names, 'count='] if kind.when == 'armed' else names)}"


class FaultBook:
    """The faults that are armed. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: dict[str, Fault] = {}
        self._draws: dict[str, random.Random] = {}
        self._armed = 0

    def arm(self, text: str) -> Fault:
        """Adds a fault, written as `parse_fault` reads it. Raises FaultError."""
        fault = parse_fault(text)
        if KINDS[fault.kind].when == "immediate":
            raise FaultError(f"{fault.kind}: acts at once on an instance that runs, so it cannot be armed beforehand")
        with self._lock:
            self._armed += 1
            fault = replace(fault, id=f"fault-{self._armed}")
            if "rate" in fault.parameters:
                self._draws[fault.id] = random.Random(int(fault.parameters.get("seed", "0")))  # noqa: S311 -- a drill, not a secret
            self._faults[fault.id] = fault
            return fault

    def take(self, kind: str, **context: str) -> Fault | None:
        """The first armed fault of a kind for what the context describes, which has struck once more by that."""
        with self._lock:
            for fault in self._matching(kind, context):
                draw = self._draws.get(fault.id)
                if draw is None or draw.random() < float(fault.parameters["rate"]):
                    return self._strike(fault)
        return None

    def find(self, kind: str, **context: str) -> Fault | None:
        """The first armed fault of a kind for what the context describes; it does not count as a strike."""
        with self._lock:
            return next(iter(self._matching(kind, context)), None)

    def spend(self, fault_id: str, name: str, amount: int) -> None:
        """Lowers a parameter that is a number, such as `free`, to no less than 0; a fault that is gone stays gone.

        amount: less than 0 gives back what was spent.
        """
        with self._lock:
            fault = self._faults.get(fault_id)
            if fault is None:
                return
            left = max(0, int(fault.parameters[name]) - amount)
            self._faults[fault_id] = replace(fault, parameters={**fault.parameters, name: str(left)})

    def list(self) -> tuple[Fault, ...]:
        """All that are armed, the oldest first."""
        with self._lock:
            return tuple(self._faults.values())

    def disarm(self, which: str) -> tuple[Fault, ...]:
        """Takes away one fault by its id, or `all`, and returns what was taken. Raises FaultError for an unknown id."""
        with self._lock:
            if which != "all" and which not in self._faults:
                known = ", ".join(self._faults) or "none is armed"
                raise FaultError(f"there is no armed fault {which} ({known})")
            gone = tuple(fault for fault in self._faults.values() if which in ("all", fault.id))
            for fault in gone:
                self._forget(fault.id)
            return gone

    def _matching(self, kind: str, context: Mapping[str, str]) -> tuple[Fault, ...]:
        return tuple(fault for fault in self._faults.values() if fault.kind == kind and fault.matches(context))

    def _strike(self, fault: Fault) -> Fault:
        struck = replace(fault, struck=fault.struck + 1, left=None if fault.left is None else fault.left - 1)
        if struck.left == 0:
            self._forget(fault.id)
        else:
            self._faults[fault.id] = struck
        return struck

    def _forget(self, fault_id: str) -> None:
        self._faults.pop(fault_id)
        self._draws.pop(fault_id, None)
