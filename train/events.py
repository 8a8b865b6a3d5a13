"""What a job's log says: one JSON object a line, written by supervise.py on the head (its text says what they are).

The log is the one truth about a job's output: `cluster train`, `cluster logs` and the copy in S3 are all drawn from it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Role = Literal["scheduler", "server", "worker", "launcher", "setup"]
JobState = Literal["queued", "starting", "running", "ending", "done", "failed", "stopped"]
ENDED: frozenset[JobState] = frozenset({"done", "failed", "stopped"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One process of a job. `number` tells it from the others in the log; its rank is ps-lite's, None until known.

    Processes outside of MXNet's roles are "launcher" (launch.py itself) and "setup" (a job's set-up on a node).
    """

    number: int
    role: Role
    host: str
    rank: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None

    @property
    def tag(self) -> str:
        """What stands in front of its lines: "worker 0 node-1", "worker ? node-1" until its rank is known."""
        if self.role in ("worker", "server"):
            return f"{self.role} {'?' if self.rank is None else self.rank} {self.host}"
        return f"{self.role} {self.host}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a job ended. left: what could not be ended, {host: [[pid, command line], ...]}; pid 0 is a whole host."""

    state: JobState
    exit_code: int
    error: str | None
    left: Mapping[str, list[list[object]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One line of the log; `at` in seconds since the epoch.

    kind "process": `process` is new, or more of it is known. "line": `text` is its output. "say": `text` is the
    supervisor's own. "state": the job's state is now `state`. "warnings": these are the warnings that hold from now on.
    "result": the last one.
    """

    kind: Literal["process", "line", "say", "state", "warnings", "result"]
    at: float
    process: Process | None = None
    text: str = ""
    state: JobState | None = None
    result: Result | None = None
    warnings: tuple[str, ...] = ()


class EventReader:
    """Turns the log's lines into events; it has to read them from the first one on, for they build on each other."""

    def __init__(self) -> None:
        self.processes: dict[int, Process] = {}
        self.state: JobState = "queued"

    def read(self, line: bytes) -> Event | None:
        """The event of one line; None for a kind that this version does not know.

        Raises ValueError for what is no line of a job's log, or none that can stand at its place.
        """
        message = json.loads(line)
        try:
            return None if "alive" in message else self._read(message)  # "alive" is the channel's, not the log's
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no line of a job's log: {line[:200]!r}") from error

    def _read(self, message: dict[str, Any]) -> Event | None:
        at = float(message["t"])
        if "result" in message:
            result = _read_result(message["result"])
            self.state = result.state
            return Event(kind="result", at=at, result=result, state=result.state)
        if "state" in message:
            self.state = message["state"]
            return Event(kind="state", at=at, state=self.state)
        if "say" in message:
            return Event(kind="say", at=at, text=message["say"])
        if "warnings" in message:
            return Event(kind="warnings", at=at, warnings=tuple(map(str, message["warnings"])))
        return self._read_process(message, at) if "p" in message else None

    def _read_process(self, message: dict[str, Any], at: float) -> Event:
        number = int(message["p"])
        if "line" in message:
            return Event(kind="line", at=at, process=self.processes[number], text=message["line"])
        if "role" in message:
            process = Process(number=number, role=message["role"], host=message["host"])
        else:
            names = {"rank": "rank", "pid": "pid", "exit": "exit_code", "signal": "signal"}
            known = {ours: message[theirs] for theirs, ours in names.items() if theirs in message}
            process = replace(self.processes[number], **known)
        self.processes[number] = process
        return Event(kind="process", at=at, process=process)


def _read_result(message: dict[str, Any]) -> Result:
    # Later versions may say more than this one knows.
    return Result(
        state=message["state"],
        exit_code=message["exit_code"],
        error=message.get("error"),
        left=message.get("left") or {},
    )
