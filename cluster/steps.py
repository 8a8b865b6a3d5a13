"""Steps on the screen: what has begun as a passing line (on a terminal alone), what is done to stay."""

import sys
import threading
from typing import TYPE_CHECKING

from cluster.terminal import escape, escape_line, write
from provision.progress import Event

if TYPE_CHECKING:
    from rich.console import Console

MARKS = {"done": ("ok", "green"), "same": ("==", "dim"), "info": ("  ", ""), "warn": ("!!", "yellow")}


class StepDisplay:
    """Shows events as they come, from whatever thread."""

    def __init__(self, console: "Console") -> None:
        from rich.text import Text  # noqa: PLC0415 - not for those who have no terminal

        self._console = console
        self._text = Text
        self._lock = threading.Lock()
        self._running: tuple[str, ...] = ()
        self._spinner = console.status("")

    def show(self, event: Event) -> None:
        """Show one event."""
        with self._lock:
            self._running = still_running(self._running, event)
            if event.kind in MARKS:
                mark, style = MARKS[event.kind]
                shown = escape(f"{mark} {render_event(event)}")
                self._console.print(shown, style=style or None, markup=False, emoji=False)
            if not self._console.is_terminal:
                return
            if self._running:
                self._spinner.update(self._text(escape_line(self._running[-1])))  # a str would be read as markup
                self._spinner.start()
            else:
                self._spinner.stop()

    def close(self) -> None:
        """Take away the passing line."""
        with self._lock:
            self._running = ()
            self._spinner.stop()


class PlainSteps:
    """Shows events where there is no terminal: what is done, in lines. It has no need of rich."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def show(self, event: Event) -> None:
        """Show one event, from whatever thread."""
        if event.kind in MARKS:
            with self._lock:
                write(sys.stderr, f"{MARKS[event.kind][0]} {render_event(event)}")

    def close(self) -> None:
        """There is nothing to take away."""


def render_event(event: Event) -> str:
    """An event in a line. Pure."""
    duration = f" ({event.duration_s:.1f} s)" if event.duration_s is not None else ""
    return f"{step_name(event)}{duration}"


def step_name(event: Event) -> str:
    """What an event is about, with the place where it is. Pure."""
    return f"{event.where}: {event.what}" if event.where else event.what


def still_running(running: tuple[str, ...], event: Event) -> tuple[str, ...]:
    """The steps that run after an event, in the order in which they began. Pure.

    A step may end in other words than it began with: then it is the last one that began at the same place.
    """
    if event.kind == "start":
        return (*running, step_name(event))
    if event.kind not in {"done", "same"}:
        return running
    place = f"{event.where}: " if event.where else ""
    candidates = [name for name in running if name == step_name(event)] or [
        name for name in running if name.startswith(place)
    ]
    if not candidates:
        return running
    position = len(running) - 1 - running[::-1].index(candidates[-1])
    return running[:position] + running[position + 1 :]
