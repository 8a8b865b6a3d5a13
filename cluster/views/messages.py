"""Messages and steps on stderr: finished steps as lines, running ones as a spinner (on a terminal only)."""

import threading

from rich.console import Console
from rich.status import Status
from rich.text import Text

from cluster.views.layout import wrap
from cluster.views.terminal import escape, escape_line, write
from foundation.progress import Event

MARKS = {"done": ("ok", "green"), "same": ("==", "dim"), "info": ("  ", ""), "warn": ("!!", "yellow")}


def make_console() -> Console:
    """The one Console of a command, on stderr."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(console: Console, text: str, *, style: str = "") -> None:
    """Print a message: on a terminal escaped and in a style, never as markup; elsewhere as it is."""
    if console.is_terminal:
        console.print(wrap(escape(text), console.width), style=style or None, markup=False, emoji=False)
    else:
        write(console.file, text)


class StepDisplay:
    """Shows events as they come. Thread-safe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._running: tuple[str, ...] = ()
        self._spinner = Status("", console=console)

    def show(self, event: Event) -> None:
        """Show one event."""
        with self._lock:
            self._running = still_running(self._running, event)
            if event.kind in MARKS:
                mark, style = MARKS[event.kind]
                say(self._console, f"{mark} {render_event(event)}", style=style)
            if not self._console.is_terminal:
                return
            if self._running:
                # A str would be read as markup.
                self._spinner.update(Text(escape_line(self._running[-1]), no_wrap=True, overflow="ellipsis"))
                self._spinner.start()
            else:
                self._spinner.stop()

    def close(self) -> None:
        """Remove the spinner."""
        with self._lock:
            self._running = ()
            self._spinner.stop()


def render_event(event: Event) -> str:
    """An event in a line. Pure."""
    duration = f" ({event.duration_s:.1f} s)" if event.duration_s is not None else ""
    return f"{step_name(event)}{duration}"


def step_name(event: Event) -> str:
    """The name of an event's step, with its place. Pure."""
    return f"{event.where}: {event.what}" if event.where else event.what


def still_running(running: tuple[str, ...], event: Event) -> tuple[str, ...]:
    """The steps that run after an event, in the order in which they began. Pure.

    If the end of a step is worded differently from its start, it ends the last step that began at the same place.
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
