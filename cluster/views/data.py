"""The output of `cluster data`: the progress of a copy, and a summary of it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from rich.filesize import decimal

from cluster.app import App
from provision.model import count
from train.s3 import transfer
from train.s3.operations import Done
from train.s3.transfer_plan import Download, Upload

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


_FIRST_LINE_S = 10.0
_EVERY_S = 30.0
_REFRESH_S = 0.1
_MOST_NAMED = 3
Unit = Literal["bytes", "images"]


class TransferProgress(transfer.Progress):
    """Shows the progress of a copy by train.s3. bars: on a terminal; None: `message` prints a line periodically."""

    def __init__(
        self, bars: "Progress | None", message: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bars = bars
        self._message = message
        self._clock = clock
        self._next = self._began = clock()
        self._total = self._moved = 0  # bytes
        self._count = self._files = 0

    def watch(self, transfers: Sequence[Upload | Download], /) -> "TransferProgress":
        """Starts to show progress, now that the plan contains the total size.

        An earlier bar would overwrite questions at the terminal, such as one for an MFA code.
        """
        self._count = len(transfers)
        self._total = sum(transfer.size_bytes for transfer in transfers)
        self._began = self._clock()
        self._next = self._began + (_FIRST_LINE_S if self._bars is None else 0)
        if self._bars is not None:
            self._bars.add_task(self._files_done(), total=self._total)
            self._bars.start()
        return self

    def moved(self, size_bytes: int) -> None:
        """Counts bytes that arrived."""
        self._moved += size_bytes
        self._show()

    def finished(self, _transfer: Upload | Download, /) -> None:
        """Counts a file that is complete."""
        self._files += 1
        self._show()

    def _show(self) -> None:
        # Thousands of small files may arrive each second, and one drawing takes as long as one of them.
        now = self._clock()
        if now < self._next:
            return
        if self._bars is None:
            self._next = now + _EVERY_S
            self._message(self._render_line(now - self._began))
        else:
            self._next = now + _REFRESH_S
            self._bars.update(self._bars.task_ids[0], completed=self._moved, description=self._files_done())

    def _render_line(self, duration_s: float) -> str:
        rate = self._moved / duration_s
        moved = f"{decimal(self._moved)} of {decimal(self._total)}"
        message = f"{self._files_done()}, {moved}, {decimal(int(rate))}/s"
        if not rate:  # only empty files so far, or no answer yet
            return message
        left_s = max(self._total - self._moved, 0) / rate
        return f"{message}, {timedelta(seconds=round(left_s))} left"

    def _files_done(self) -> str:
        return f"{self._files}/{self._count} files"


@contextmanager
def transfer_progress(app: App) -> Iterator[TransferProgress]:
    """Shows a bar on the terminal, and removes it when the copy is done; without a terminal, prints lines."""
    if app.console is None:
        yield TransferProgress(None, app.message)
        return
    with _bars(app.console, "bytes") as bars:
        yield TransferProgress(bars, app.message)


@contextmanager
def counting_bar(app: App, what: str, total: int, unit: Unit) -> Iterator[Callable[[int], None]]:
    """Shows a bar on a terminal if there is a total, else nothing. Yields a function that advances the bar."""
    if app.console is None or not total:
        yield lambda _more: None
        return
    with _bars(app.console, unit) as bars:
        bars.start()
        task = bars.add_task(what, total=total)
        yield lambda more: bars.update(task, advance=more)


@contextmanager
def _bars(console: "Console", unit: Unit) -> "Iterator[Progress]":
    """Yields bars that are not shown yet, and removes them from the terminal at the end."""
    from rich import progress  # noqa: PLC0415 - only for a terminal; see messages.py

    bar = progress.BarColumn(complete_style="green", finished_style="green", pulse_style="green")
    columns: list[progress.ProgressColumn] = [progress.TextColumn("{task.description}"), bar]
    if unit == "bytes":
        columns += [progress.DownloadColumn(), progress.TransferSpeedColumn()]
    else:
        columns.append(progress.MofNCompleteColumn())
    columns += [progress.TimeRemainingColumn(compact=True), progress.TextColumn("left")]
    bars = progress.Progress(*columns, console=console, transient=True)
    try:
        yield bars
    finally:
        bars.stop()


def describe_transfers(done: Done, began: float) -> str:
    """Summarizes a copy in one line. began: time.monotonic() at its start."""
    transfers = done.plan.transfers
    if not transfers:
        return "nothing"
    size_bytes = sum(transfer.size_bytes for transfer in transfers)
    duration_s = max(time.monotonic() - began, 0.001)
    message = f"{count(len(transfers), 'file')}, {decimal(size_bytes)} in {duration_s:.1f} s"
    return f"{message} ({decimal(int(size_bytes / duration_s))}/s)"


def describe_others(done: Done) -> str:
    """Returns how many files were unchanged or deleted, as the end of a sentence; empty if none."""
    counts = {"unchanged": len(done.plan.unchanged), "deleted": len(done.plan.deletions)}
    return "".join(f"; {count(number, 'file')} {what}" for what, number in counts.items() if number)


def describe_unverified(unverified: Sequence[Download]) -> str:
    """Returns the warning about objects without a comparable checksum: their number, and the first of them."""
    urls = sorted(str(download.source) for download in unverified)
    named = ", ".join(urls[:_MOST_NAMED])
    if len(urls) > _MOST_NAMED:
        named += f" and {len(urls) - _MOST_NAMED} more"
    return f"S3 has no usable checksum for {count(len(urls), 'object')}; only the size was compared: {named}"
