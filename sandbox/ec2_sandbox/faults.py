"""Faults on demand: their kinds, which faults are armed, and how often they strike.

A fault is written `KIND name=value ... [count=K]`, in the settings and on the command line. Faults are deterministic: a
fault strikes the next K calls that it selects.
"""

import difflib
import shlex
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

Act = Callable[[Mapping[str, str]], str]
"""Causes an immediate fault: takes its parameters and returns a description of its effect. Raises FaultError."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One `name=value` of a kind.

    `allowed`: describes valid values. `selects`: whether the value is a pattern with * and ?, not case-sensitive, that
    limits what the fault strikes. `check`: returns whether a value is valid.
    """

    name: str
    allowed: str
    check: Callable[[str], bool] = bool
    selects: bool = False
    required: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. `count`: how often it strikes by default; None means until it is disarmed."""

    name: str
    summary: str
    parameters: tuple[Parameter, ...] = ()
    count: int | None = 1
    when: Literal["armed", "immediate"] = "armed"


def is_whole(text: str) -> bool:
    """Returns whether the text is a whole number, 0 or more."""
    return text.isascii() and text.isdigit()


def is_number(text: str) -> bool:
    """Returns whether the text is a decimal number, 0 or more."""
    whole, _, part = text.partition(".")
    return is_whole(whole) and (not part or is_whole(part))


def _select(name: str, allowed: str, check: Callable[[str], bool] = bool) -> Parameter:
    return Parameter(name, allowed, check, selects=True)


def _immediate(name: str, summary: str, *parameters: Parameter) -> Kind:
    return Kind(name, summary, parameters, when="immediate")


ZONE = _select("zone", "an availability zone, such as us-east-1a")
TYPE = _select("type", "an instance type, such as p4d.24xlarge or p4d.*")
MARKET = _select("market", "on-demand or spot", lambda text: text in ("on-demand", "spot"))
SERVICE = _select("service", "a service's name in signatures, such as ec2 or ssm")
ACTION = _select("action", "an API action, such as RunInstances or Describe*")
OPERATION = _select("operation", "an S3 operation, such as GetObject or *Upload*")
KEY = _select("key", "an object's key, such as digits/*")
INSTANCE = Parameter("instance", "an instance's id", required=True)
ONE = Parameter("a", "an instance's id", required=True)
OTHER = Parameter("b", "another instance's id", required=True)
FREE = Parameter("free", "the number of instances that can still launch, 0 or more", is_whole)
MS = Parameter("ms", "a number of milliseconds, up to 60000",
               lambda text: is_number(text) and float(text) <= 60_000, required=True)  # fmt: skip
AFTER_BYTES = Parameter("after_bytes", "the number of bytes that pass; default 0", is_whole)
LEAVES = Parameter("leaves", "stopped, or running (EC2 does not notice)",
                   lambda text: text in ("stopped", "running"))  # fmt: skip
MBIT = Parameter("mbit", "a number of Mbit/s; 0: no limit", is_number, required=True)
AFTER_S = Parameter("after_s", "the seconds until its end; default 120", is_number)

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("capacity", "InsufficientInstanceCapacity once `free` more instances have been launched",
             (ZONE, TYPE, MARKET, FREE), count=None),
        Kind("vcpu-limit", "VcpuLimitExceeded (for spot MaxSpotInstanceCountExceeded), whatever the quotas are",
             (TYPE, MARKET), count=None),
        Kind("throttle", "RequestLimitExceeded for the next calls", (SERVICE, ACTION)),
        Kind("slow", "the answer comes `ms` milliseconds later", (SERVICE, ACTION, MS), count=None),
        Kind("unauthorized", "UnauthorizedOperation, as for a role that lacks a permission", (SERVICE, ACTION),
             count=None),
        Kind("internal-error", "InternalError, before anything is done", (SERVICE, ACTION)),
        Kind("lost-reply", "the call takes effect and the connection is closed without a reply", (SERVICE, ACTION)),
        Kind("s3-503", "503 SlowDown from S3, before anything is done", (OPERATION, KEY)),
        Kind("s3-cut", "the connection is cut within the object's bytes, up or down", (OPERATION, KEY, AFTER_BYTES)),
        Kind("no-boot", "the next instance's host never boots", (ZONE, TYPE)),
        Kind("no-sshd", "the next instance's host boots without sshd", (ZONE, TYPE)),
        _immediate("kill", "the host loses its power; its instance stops, as on lost hardware, or with leaves=running "
                   "EC2 does not notice", INSTANCE, LEAVES),
        _immediate("freeze", "all processes of the host stop, and its network is silent", INSTANCE),
        _immediate("thaw", "a frozen host continues", INSTANCE),
        _immediate("partition", "two hosts cannot reach each other", ONE, OTHER),
        _immediate("heal", "ends a partition", ONE, OTHER),
        _immediate("full-disk", "the host's disk is full", INSTANCE),
        _immediate("free-disk", "ends full-disk", INSTANCE),
        _immediate("link", "limits the bandwidth of the host's link, in each direction", INSTANCE, MBIT),
        _immediate("spot-notice", "a spot instance's metadata announces its end, which follows", INSTANCE, AFTER_S),
    )
}  # fmt: skip


class FaultError(ValueError):
    """A fault is invalid, does not exist, or cannot be caused. The message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A fault. `left`: how often it can still strike; None means until it is disarmed. `struck`: how often it struck.

    `id` is empty until the fault is armed. It is always empty for immediate kinds.
    """

    kind: str
    parameters: Mapping[str, str]
    left: int | None
    id: str = ""
    struck: int = 0

    @property
    def text(self) -> str:
        """The fault as the user writes it, without count=."""
        return " ".join((self.kind, *(f"{name}={value}" for name, value in self.parameters.items())))

    def matches(self, context: Mapping[str, str]) -> bool:
        """Returns whether it selects what the context describes. A missing parameter selects everything."""
        return all(
            fnmatchcase(context.get(parameter.name, "").lower(), self.parameters[parameter.name].lower())
            for parameter in KINDS[self.kind].parameters
            if parameter.selects and parameter.name in self.parameters
        )


def parse_fault(text: str) -> Fault:
    """Parses `KIND name=value ... [count=K]` as a fault that is not yet armed. Pure. Raises FaultError."""
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
        raise FaultError(f'unknown fault "{words[0]}"{suggestion} (known: {", ".join(KINDS)})')
    values: dict[str, str] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals:
            raise FaultError(f'{kind.name}: "{word}" does not have the form name=value; {_describe_parameters(kind)}')
        if name in values:
            raise FaultError(f"{kind.name}: {name}= is given twice")
        values[name] = value
    count = values.pop("count", None)
    _check_values(kind, values)
    return Fault(kind=kind.name, parameters=values, left=_parse_count(kind, count))


def fault(
    kind: str, *, zone: str | None = None, type: str | None = None,  # noqa: A002 -- as in the text
    market: Literal["on-demand", "spot"] | None = None, free: int | None = None, service: str | None = None,
    action: str | None = None, operation: str | None = None, key: str | None = None, after_bytes: int | None = None,
    instance: str | None = None, leaves: Literal["stopped", "running"] | None = None, a: str | None = None,
    b: str | None = None, mbit: float | None = None, ms: float | None = None, after_s: float | None = None,
    count: int | Literal["all"] | None = None,
) -> Fault:  # fmt: skip
    """Returns a fault for a program: `fault("capacity", zone="us-east-1a")` is `capacity zone=us-east-1a`.

    KINDS, and `ec2-sandbox fault --help`, have the parameters and the effect of each kind. count: how often it takes
    effect; "all": until it is removed. Raises FaultError for a parameter that the kind does not have, or that it needs.
    """
    given = {name: value for name, value in locals().items() if name != "kind" and value is not None}
    return parse_fault(shlex.join([kind, *(f"{name}={value}" for name, value in given.items())]))


def render_fault(fault: Fault) -> str:
    """Renders a fault in the syntax of `parse_fault`. Pure."""
    words = [fault.kind, *(f"{name}={value}" for name, value in fault.parameters.items())]
    if KINDS[fault.kind].when == "armed":
        words.append(f"count={'all' if fault.left is None else fault.left}")
    return shlex.join(words)


def _parse_count(kind: Kind, text: str | None) -> int | None:
    if text is None:
        return kind.count
    if kind.when == "immediate":
        raise FaultError(f"{kind.name}: acts once, immediately, and takes no count=")
    if text == "all":
        return None
    if not is_whole(text) or int(text) == 0:
        raise FaultError(f'{kind.name}: count= must be a whole number of at least 1, or "all" (until disarmed)')
    return int(text)


def _check_values(kind: Kind, values: Mapping[str, str]) -> None:
    known = {parameter.name: parameter for parameter in kind.parameters}
    for name, value in values.items():
        if name not in known:
            raise FaultError(f"{kind.name}: unknown parameter {name}=; {_describe_parameters(kind)}")
        if not value or not known[name].check(value):
            raise FaultError(f"{kind.name}: {name}={value} is not valid; expected: {known[name].allowed}")
    for parameter in kind.parameters:
        if parameter.required and parameter.name not in values:
            raise FaultError(f"{kind.name}: {parameter.name}= is missing: {parameter.allowed}")


def _describe_parameters(kind: Kind) -> str:
    names = [f"{parameter.name}=" for parameter in kind.parameters]
    return f"{kind.name} takes {', '.join([*names, 'count='] if kind.when == 'armed' else names)}"


class FaultBook:
    """The armed faults. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._faults: dict[str, Fault] = {}
        self._armed = 0

    def arm(self, text: str) -> Fault:
        """Arms a fault in the syntax of `parse_fault`, and returns it. Raises FaultError."""
        fault = parse_fault(text)
        with self._lock:
            self._armed += 1
            fault = replace(fault, id=f"fault-{self._armed}")
            self._faults[fault.id] = fault
            return fault

    def take(self, kind: str, **context: str) -> Fault | None:
        """Returns the oldest armed fault of a kind that matches the context, or None. This is a strike."""
        with self._lock:
            fault = self.find(kind, **context)
            return self._strike(fault) if fault else None

    def find(self, kind: str, **context: str) -> Fault | None:
        """Returns the oldest armed fault of a kind that matches the context, or None. This is not a strike."""
        with self._lock:
            return next((one for one in self._faults.values() if one.kind == kind and one.matches(context)), None)

    def spend(self, fault_id: str, name: str, amount: int) -> None:
        """Decreases a number, such as `free`, to 0 at least. A negative amount increases it. Ignores an unknown id."""
        with self._lock:
            if fault := self._faults.get(fault_id):
                left = max(0, int(fault.parameters[name]) - amount)
                self._faults[fault_id] = replace(fault, parameters={**fault.parameters, name: str(left)})

    def restart(self, texts: Iterable[str]) -> None:
        """Forgets all faults, and arms those of the settings, as at the start. Raises FaultError."""
        with self._lock:
            self._faults.clear()
            self._armed = 0
        for text in texts:
            self.arm(text)

    def list(self) -> tuple[Fault, ...]:
        """Returns the armed faults, oldest first."""
        with self._lock:
            return tuple(self._faults.values())

    def disarm(self, which: str) -> tuple[Fault, ...]:
        """Disarms the fault with this id, or `all`. Returns the disarmed faults. Raises FaultError for unknown ids."""
        with self._lock:
            if which != "all" and which not in self._faults:
                known = ", ".join(self._faults) or "none"
                raise FaultError(f"no armed fault has the id {which} (armed: {known})")
            gone = tuple(fault for fault in self._faults.values() if which in ("all", fault.id))
            for fault in gone:
                del self._faults[fault.id]
            return gone

    def _strike(self, fault: Fault) -> Fault:
        struck = replace(fault, struck=fault.struck + 1, left=None if fault.left is None else fault.left - 1)
        if struck.left == 0:
            del self._faults[fault.id]
        else:
            self._faults[fault.id] = struck
        return struck
