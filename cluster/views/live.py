"""Shows a job on the screen: its output line by line and, below it on a terminal, the progress of each rank.

On a terminal, one thread does all the writing. So Ctrl-C, which is raised in the main thread, never cuts a line, and is
not delayed by a terminal that is slow or stopped by Ctrl-S. rich's Live is not used: it would draw from any thread,
once for each line, and leave rows behind in a window that is made narrower.
"""

import os
import posixpath
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import TextIO

from msgspec.structs import replace

from cluster.app import App
from cluster.views.job_rows import Row, Style, render_summary, render_view
from cluster.views.layout import cut, find_width, wrap
from cluster.views.terminal import (
    can_draw,
    escape,
    escape_line,
    escape_output,
    find_columns,
    has_colour,
    paint,
    write_unchanged,
)
from node.protocol import JobSpec, LogWanted
from node.reports import Report
from train.follow.advice import Advisor
from train.follow.bars import BarLines
from train.follow.events import ALL, Event, is_wanted, render_line
from train.follow.goals import find_epochs
from train.follow.missing_module import advise
from train.follow.progress import Progress
from train.follow.tracebacks import Tracebacks

DRAW_EVERY_S = 0.1
CLOCK_EVERY_S = 1.0  # keeps the clocks in the view running when nothing happens
MOST_WAITING = 10_000  # lines kept while the terminal is busy
GREATEST_WRITE = 1 << 14  # bytes; keeps single writes to a slow terminal short
TTY = os.makedev(5, 0)  # /dev/tty
CODES: dict[Style, str] = {"": "", "bold": "1", "dim": "2", "slow": "33"}


class JobDisplay:
    """Shows a job's events: its lines on stdout; the view, advice and a summary on stderr.

    If stderr is a terminal, there is a view of all ranks, unless `plain`. Equal tracebacks of several processes are
    shown once, unless `plain`. If stdout is the same terminal, lines that only report progress appear only in the view.
    head: the supervisor's node. wanted: which lines are shown; the view covers all ranks. Pass it all events of the
    job, from the first one, from one thread.
    """

    def __init__(self, app: App, job: JobSpec, *, head: str, plain: bool = False, wanted: LogWanted = ALL) -> None:
        app.close()  # removes the spinner, which would be drawn into the view
        self._app = app
        self._wanted = wanted
        self._head = head
        self._progress = Progress(epochs=find_epochs(find_program(job)))
        self.advisor = make_advisor(app, job)
        self._tracebacks = None if plain else Tracebacks()
        self._bar_lines = BarLines()
        self._closed = False
        self._stdout_terminal = sys.stdout.isatty()
        with_view = not plain and can_have_view(sys.stdout, sys.stderr)
        self._view = LiveView(sys.stderr, self._progress, title=f"job {job.name}") if with_view else None
        self._shared = with_view and self._stdout_terminal and same_terminal(sys.stdout, sys.stderr)

    def take(self, event: Event) -> None:
        """Shows an event. Raises OSError, such as BrokenPipeError, when the output is closed."""
        if event.kind == "bar":
            self._take_bar(event)
            return
        new_warnings = [text for text in event.warnings if text not in self._progress.warnings]
        report = (self._view or self._progress).take(event)
        for text in new_warnings:
            self.message(f"warning: {text}", style="yellow")
        shown = is_wanted(event, self._wanted)
        # If lines and view share a terminal, lines whose content the view shows are not printed.
        advice = self.advisor.take(event)
        if advice is not None and (shown or self._wanted.since is None):
            whose = f" [{event.process.tag}]" if event.process is not None else ""
            self.message(f"hint{whose}: {advice}", style="yellow")
        if not (self._shared and report is not None and report.is_passing):
            self._show(self._tracebacks.take(event) if shown and self._tracebacks is not None else [event] * shown)
        if event.kind == "result":
            self._show_repeated()

    def _take_bar(self, event: Event) -> None:
        if self._view is not None:
            self._view.take(event)
            return
        self._progress.take(event)
        if is_wanted(event, self._wanted):
            self._show(self._bar_lines.take(event))

    def _show(self, events: Sequence[Event]) -> None:
        for event in events:
            line = render_line(event, head=self._head)
            if line is not None:
                self._print(line)

    def _show_repeated(self) -> None:
        """Says which tracebacks are those of several processes, once."""
        tracebacks, self._tracebacks = self._tracebacks, None
        if tracebacks is not None:
            self._show(tracebacks.flush())
            for text in tracebacks.render():
                self.message(text)

    def message(self, text: str, *, style: str = "") -> None:
        """Prints a message of `cluster` itself to stderr, above the view."""
        if self._view is None or self._closed:
            self._app.message(text, style=style)
        else:
            self._view.print(f"{wrap(escape(text), find_columns(sys.stderr))}\n", style=style)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hides the view, so that the terminal can be used for a question."""
        if self._view is None or self._closed:
            yield
            return
        self._view.pause()
        try:
            yield
        finally:
            self._view.resume()

    def close(self, *, with_summary: bool = True) -> None:
        """Removes the view, and prints a summary of the workers' reports and the warnings. Can be called twice."""
        if self._closed:
            return
        self._show_repeated()
        self._closed = True
        if self._view is not None:
            self._view.close()
        if not with_summary:
            return
        summary = render_summary(self._progress)
        if summary is not None:
            self._app.message(summary)
        for text in self._progress.warnings:
            self._app.message(f"warning: {text}", style="yellow")

    @property
    def has_numbers(self) -> bool:
        """Whether a worker has reported numbers, such as its speed."""
        return any(rank.has_report for rank in self._progress.ranks)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The job's current warnings."""
        return self._progress.warnings

    def _print(self, line: str) -> None:
        if self._stdout_terminal:
            line = escape_output(line)
        if self._shared and self._view is not None:
            self._view.print(f"{line}\n")
            return
        write_unchanged(sys.stdout, line)


def find_program(job: JobSpec) -> tuple[str, ...]:
    """Returns the job's script and the words of its command."""
    return (job.script or "", *job.command)


def make_advisor(app: App, job: JobSpec) -> Advisor:
    """Creates the advisor that gives hints on a job."""
    return Advisor(partial(advise_on_module, app, job))


def advise_on_module(app: App, job: JobSpec, module: str) -> str:
    """Returns the hint for a module that is missing on the nodes, or in the image that the job runs in."""
    config = app.config
    words = (*(posixpath.join(job.train.subfolder, word) for word in find_program(job)), job.train.script)
    if job.image is not None and config.bootstrap.framework == "none":
        return f"{module} is not in the image {job.image}: install it there, in its Dockerfile"
    return advise(module, words, project_dir=app.project_dir, packages=config.bootstrap.packages)


class LiveView:
    """The view at the bottom of a terminal and the lines above it, written by a separate thread."""

    def __init__(self, terminal: TextIO, progress: Progress, *, title: str) -> None:
        self._region = Region(terminal.fileno())
        self._progress = progress
        self._title = title
        self._colour = has_colour(terminal)
        self._lock = threading.RLock()  # of what follows, and of the terminal; Ctrl-Z may come while it is held
        self._waiting: list[str] = []
        self._shown = True
        self._draw_at = 0.0
        self._received_at = time.monotonic()
        self._failure: OSError | None = None
        self._ending = threading.Event()
        self._on_stop = signal.getsignal(signal.SIGTSTP)
        self._thread = threading.Thread(target=self._run, name="live view", daemon=True)
        self._thread.start()
        if self._handles_stop:
            signal.signal(signal.SIGTSTP, self._stop)

    def take(self, event: Event) -> Report | None:
        """Records an event for the view. Returns the report in its line, if any."""
        with self._lock:
            report = self._progress.take(event)
            self._received_at = time.monotonic()
            if report is not None or event.kind != "line":
                self._draw_at = 0.0
        return report

    def print(self, text: str, *, style: str = "") -> None:
        """Prints whole lines above the view; waits while the terminal is far behind. Raises OSError if it is closed."""
        if style and self._colour:
            text = f"{paint(text.removesuffix(chr(10)), style)}\n"
        while len(self._waiting) >= MOST_WAITING and self._failure is None:
            time.sleep(DRAW_EVERY_S / 4)
        if self._failure is not None:
            raise self._failure
        with self._lock:
            self._waiting.append(text)

    def pause(self) -> None:
        """Hides the view, and returns when the terminal is free. Lines are buffered until `resume`."""
        with self._lock:
            self._draw(())
            self._shown = False

    def resume(self) -> None:
        """Shows the view again."""
        with self._lock:
            self._shown, self._draw_at = True, 0.0

    def close(self) -> None:
        """Prints the buffered lines, removes the view and ends the thread. A closed terminal is not an error."""
        if self._handles_stop:
            signal.signal(signal.SIGTSTP, self._on_stop)
        self._ending.set()
        self._thread.join()
        with suppress(OSError):
            self._draw(())

    @property
    def _handles_stop(self) -> bool:
        """Whether Ctrl-Z is to be handled: only the main thread may, and a shell without job control ignores it."""
        return threading.current_thread() is threading.main_thread() and self._on_stop is signal.SIG_DFL

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Stops at Ctrl-Z, without a view on the terminal: after `fg`, it follows what the shell has printed."""
        del frame
        was_shown = self._shown
        if was_shown:
            self.pause()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # returns after `fg` or `bg`
        signal.signal(number, self._stop)
        if was_shown:
            self.resume()

    def _run(self) -> None:
        try:
            while not self._ending.wait(DRAW_EVERY_S):
                with self._lock:
                    if self._shown and (self._waiting or time.monotonic() >= self._draw_at):
                        self._draw(self._rows() if self._region.is_ours else ())
        except OSError as error:
            self._failure = error

    def _draw(self, rows: Sequence[Row]) -> None:
        above = "".join(self._waiting)
        self._waiting.clear()
        self._draw_at = time.monotonic() + CLOCK_EVERY_S
        self._region.draw([(self._paint(row), find_width(row.text)) for row in rows], above)

    def _rows(self) -> tuple[Row, ...]:
        if not self._progress.now:
            return ()  # no event has arrived yet
        columns, lines = self._region.size
        now = self._progress.now + (time.monotonic() - self._received_at)
        rows = render_view(self._progress, title=self._title, now=now, columns=columns, lines=lines)
        return tuple(replace(row, text=cut(escape_line(row.text), columns - 1)) for row in rows)

    def _paint(self, row: Row) -> str:
        code = CODES[row.style] if self._colour else ""
        return f"\x1b[{code}m{row.text}\x1b[0m" if code else row.text


class Region:
    """Draws on a terminal by its file descriptor. The cursor is at the start of the line below the rows."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rows: tuple[str, ...] = ()
        self._lengths: tuple[int, ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        """The terminal's columns and lines; 80 and 24 if it does not report them."""
        columns, lines = os.get_terminal_size(self._descriptor)
        return columns or 80, lines or 24

    @property
    def is_ours(self) -> bool:
        """Whether this process is in the foreground: after `bg`, the terminal is the shell's."""
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:  # no shell controls jobs on this terminal
            return True

    def draw(self, rows: Sequence[tuple[str, int]], above: str = "") -> None:
        """Prints whole lines, and draws the rows below them. rows: the text of each as written, and its visible length.

        Writes nothing if nothing has changed. Raises OSError when the terminal is closed.
        """
        texts = tuple(text for text, _ in rows)
        if texts == self._rows and not above:
            return
        # One write, so that the terminal never shows a screen without the rows.
        drawn = "".join(f"{text}\n" for text in texts)
        data = f"{self._erasure()}{above}{drawn}".encode("utf-8", "replace")
        self._rows, self._lengths = texts, tuple(length for _, length in rows)
        self._write(data)

    def _erasure(self) -> str:
        """Returns the codes that erase the rows. In a window that was made narrower, a row may occupy several lines."""
        if not self._rows:
            return ""
        columns = self.size[0]
        lines = sum(max(1, -(-length // columns)) for length in self._lengths)
        return f"\r\x1b[{lines}A\x1b[J"

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view[:GREATEST_WRITE]) :]
            except BlockingIOError:  # another process made the terminal non-blocking
                select.select([], [self._descriptor], [])


def can_have_view(stdout: TextIO, stderr: TextIO) -> bool:
    """Whether a view can be drawn on stderr.

    It cannot if stdout is a pipe, whose reader (`| tee log`, `| grep Epoch`) usually prints on the same terminal.
    """
    if not can_draw(stderr):
        return False
    return stdout.isatty() or not stat.S_ISFIFO(os.fstat(stdout.fileno()).st_mode)


def same_terminal(one: TextIO, other: TextIO) -> bool:
    """Whether two streams are the same terminal. Both must be terminals; /dev/tty counts as the same as any other.

    Not by their names: in a chroot, or after nsenter, a terminal may have none.
    """
    one_of, other_of = os.fstat(one.fileno()), os.fstat(other.fileno())
    is_tty = TTY in (one_of.st_rdev, other_of.st_rdev)
    return is_tty or (one_of.st_dev, one_of.st_rdev) == (other_of.st_dev, other_of.st_rdev)
