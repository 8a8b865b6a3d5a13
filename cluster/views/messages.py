"""Messages and steps on stderr: finished steps as lines, running steps as a spinner (on a terminal only).

rich is imported only for a terminal: without it, `cluster data put` of 100 small files takes 14 % fewer instructions.
"""

import sys
import threading
from typing import TYPE_CHECKING, Literal

from cluster.views.layout import wrap
from cluster.views.terminal import can_draw, escape, escape_line, find_columns, has_colour, write
from foundation.progress import Event

if TYPE_CHECKING:
    from rich.console import Console


MARKS = {"done": ("ok", "green"), "same": ("==", "dim"), "info": ("  ", ""), "warn": ("!!", "yellow")}


def make_console() -> "Console | None":
    """Creates the only Console of a command, on stderr; None if nothing can be drawn there."""
    if not can_draw(sys.stderr):
        return None
    from rich.console import Console  # noqa: PLC0415 - see the top
    from rich.theme import Theme  # noqa: PLC0415

    class VisibleCursor(Console):
        """A command that is stopped by Ctrl-Z or killed would leave the shell without a cursor."""

        def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002, FBT001, FBT002 - rich's signature
            """Leaves the cursor as it is, which rich hides while it draws."""
            return False

    system: Literal["auto"] | None = "auto" if has_colour(sys.stderr) else None
    theme = Theme({"progress.data.speed": "none"})  # not in red, like an error
    return VisibleCursor(
        stderr=True, highlight=False, soft_wrap=True, force_terminal=True, color_system=system, theme=theme
    )


def message(console: "Console | None", text: str, *, style: str = "", wrapped: bool = True) -> None:
    """Prints a message: escaped on a terminal, never as markup; elsewhere unchanged.

    wrapped: on a terminal, lines are wrapped between words.
    """
    if console is None:
        write(sys.stderr, text, wrapped=wrapped, style=style)
    else:
        shown = wrap(escape(text), find_columns(sys.stderr)) if wrapped else escape(text)
        console.print(shown, style=style or None, markup=False, emoji=False)


class StepDisplay:
    """Shows events as they arrive. Thread-safe."""

    def __init__(self, console: "Console | None") -> None:
        """console: None if nothing can be drawn on stderr."""
        self._console = console
        self._lock = threading.Lock()
        self._running: dict[str, str] = {}  # names of steps, by their place
        self._warned: dict[str, str] = {}  # the first place of each warning
        self._spinner = None
        if console is not None:
            from rich.status import Status  # noqa: PLC0415 - see the top

            self._spinner = Status("", console=console)

    def show(self, event: Event, *, is_hidden: bool = False) -> None:
        """Shows an event. is_hidden: only by the spinner."""
        with self._lock:
            track(self._running, event)
            if event.kind in MARKS and not is_hidden:
                mark, style = MARKS[event.kind]
                message(self._console, f"{mark} {self._render(event)}", style=style)
            if self._spinner is None:
                return
            if self._running:
                from rich.text import Text  # noqa: PLC0415 - see the top

                # A str would be read as markup.
                newest = next(reversed(self._running.values()))
                self._spinner.update(Text(escape_line(newest), no_wrap=True, overflow="ellipsis"))
                self._spinner.start()
            else:
                self._stop()

    def close(self) -> None:
        """Removes the spinner."""
        with self._lock:
            self._running.clear()
            self._stop()

    def _render(self, event: Event) -> str:
        """As render_event, but a node's warning that another node has had names only that node."""
        first = self._warned.setdefault(event.what, event.where or "") if event.kind == "warn" else ""
        return render_event(event) if first in {"", event.where} else f"{event.where}: the same as {first}"

    def _stop(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()


def render_event(event: Event) -> str:
    """Renders an event as one line. Pure."""
    duration = f" ({event.duration_s:.1f} s)" if event.duration_s is not None else ""
    return f"{step_name(event)}{duration}"


def step_name(event: Event) -> str:
    """Returns the name of an event's step, with its place. Pure."""
    return f"{event.where}: {event.what}" if event.where else event.what


def track(running: dict[str, str], event: Event) -> None:
    """Updates the names of the running steps, by their nodes, or else by their own names.

    A step without a node may end by another name than that of its start: then it is the newest one.
    """
    key = event.where or event.what
    if event.kind == "start":
        running[key] = step_name(event)
    elif event.kind in {"done", "same", "failed"} and running:
        running.pop(key if key in running or event.where else next(reversed(running)), None)
