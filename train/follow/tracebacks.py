"""Shows equal tracebacks of several processes once: one mistake in a script ends all of them alike."""

import re
from collections.abc import Iterator

from msgspec import Struct, field

from node.causes.mistake import without_rank
from train.follow.events import Event, Process

BEGIN = "Traceback (most recent call last):"
_ADDRESS = re.compile(r"0x[0-9a-f]+")
MOST_LINES = 500
MOST_NAMED = 4
BURST_S = 1.0
"""Lines that follow a traceback within this time belong to it: the rest of a message, or the exception's context."""


class _Seen(Struct, kw_only=True):
    """A traceback that was shown. lines: those that followed in its process."""

    error: str
    processes: list[Process]
    lines: list[str] = field(default_factory=list)

    @property
    def message(self) -> str:
        """The error's last line. From MXNet 1.7 on, an error starts with MXNet's own traceback; its message follows."""
        rest = (line for line in self.lines if line and not line[0].isspace())
        return next(rest, self.error) if self.error.endswith(BEGIN) else self.error


class _Following(Struct, kw_only=True):
    """A process after its traceback. position: in the lines of the one that was shown; None: it is that one."""

    seen: _Seen
    position: int | None
    until: float


class Tracebacks:
    """Holds back the lines of each traceback until it is complete, and leaves out those that were shown."""

    def __init__(self) -> None:
        self._open: dict[int, list[Event]] = {}
        self._seen: dict[tuple[str, ...], _Seen] = {}
        self._following: dict[int, _Following] = {}

    def take(self, event: Event) -> list[Event]:
        """The events to show now, in order."""
        process = event.process
        if event.kind == "line" and process is not None:
            return self._take_line(event, process)
        if event.kind == "result":
            return [*self.flush(), event]
        has_ended = process is not None and (process.exit_code is not None or process.signal is not None)
        return [*(self._open.pop(process.number, []) if process is not None and has_ended else []), event]

    def _take_line(self, event: Event, process: Process) -> list[Event]:
        text = _normal(event.text)
        held = self._open.get(process.number)
        if held is None and text == BEGIN:
            self._open[process.number] = [event]
            return []
        if held is None:
            return [] if self._repeats(process, text, event.at) else [event]
        held.append(event)
        if text.startswith((" ", "\t")) and len(held) < MOST_LINES:
            return []
        del self._open[process.number]
        return self._complete(held, process)

    def flush(self) -> list[Event]:
        """The lines that are held back."""
        return [held for number in list(self._open) for held in self._open.pop(number)]

    def render(self) -> Iterator[str]:
        """A line for each traceback that several processes had."""
        for seen in self._seen.values():
            count = len(seen.processes)
            if count > 1:
                names = ", ".join(process.tag for process in seen.processes[:MOST_NAMED])
                more = f" and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
                yield f"the same traceback on {count} processes ({names}{more}): {seen.message}"

    def _complete(self, held: list[Event], process: Process) -> list[Event]:
        lines = tuple(_normal(event.text) for event in held)
        until = held[-1].at + BURST_S
        seen = self._seen.get(lines)
        if seen is None:
            seen = self._seen[lines] = _Seen(error=lines[-1], processes=[process])
            self._following[process.number] = _Following(seen=seen, position=None, until=until)
            return held
        if all(other.number != process.number for other in seen.processes):
            seen.processes.append(process)
            self._following[process.number] = _Following(seen=seen, position=0, until=until)
            return []
        return held  # the process itself repeats it

    def _repeats(self, process: Process, text: str, at: float) -> bool:
        """Whether a line repeats what followed the traceback that was shown."""
        following = self._following.get(process.number)
        if following is None:
            return False
        if at <= following.until:
            lines = following.seen.lines
            if following.position is None:
                lines.append(text)
                return False
            if following.position < len(lines) and lines[following.position] == text:
                following.position += 1
                return True
        del self._following[process.number]
        return False


def _normal(text: str) -> str:
    """A line without what differs between processes. Pure."""
    return _ADDRESS.sub("0x", without_rank(text.rstrip()))
