"""Shows equal tracebacks of several processes once: one mistake in a script ends all of them alike."""

import re
from collections.abc import Iterator

from node.causes.mistakes import without_rank
from train.follow.events import Event, Process

BEGIN = "Traceback (most recent call last):"
_ADDRESS = re.compile(r"0x[0-9a-f]+")
MOST_LINES = 500
MOST_NAMED = 4


class Tracebacks:
    """Holds back the lines of each traceback until it is complete, and leaves out those that were shown."""

    def __init__(self) -> None:
        self._open: dict[int, list[Event]] = {}  # by the process's number
        self._seen: dict[tuple[str, ...], list[Process]] = {}  # the processes that had a traceback

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
        if process.number not in self._open and text != BEGIN:
            return [event]
        held = self._open.setdefault(process.number, [])
        held.append(event)
        # From MXNet 1.7 on, an error starts with MXNet's own traceback; its message follows.
        if (text.startswith((" ", "\t")) or text.endswith(BEGIN)) and len(held) < MOST_LINES:
            return []
        return self._complete(self._open.pop(process.number), process)

    def flush(self) -> list[Event]:
        """The lines that are held back."""
        return [held for number in list(self._open) for held in self._open.pop(number)]

    def render(self) -> Iterator[str]:
        """A line for each traceback that several processes had."""
        for lines, processes in self._seen.items():
            count = len(processes)
            if count > 1:
                names = ", ".join(process.tag for process in processes[:MOST_NAMED])
                more = f" and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
                yield f"the same traceback on {count} processes ({names}{more}): {lines[-1]}"

    def _complete(self, held: list[Event], process: Process) -> list[Event]:
        processes = self._seen.setdefault(tuple(_normal(event.text) for event in held), [])
        if any(other.number == process.number for other in processes):
            return held  # the process itself repeats it
        processes.append(process)
        return held if len(processes) == 1 else []


def _normal(text: str) -> str:
    """A line without what differs between processes. Pure."""
    return _ADDRESS.sub("0x", without_rank(text.rstrip()))
