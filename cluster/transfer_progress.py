"""How far a copy is: a bar on a terminal; elsewhere, where it takes long, a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.filesize import decimal

from cluster.app import App
from train.s3.operations import Done
from train.s3.plan import Download, Upload

if TYPE_CHECKING:
    from rich.progress import Progress

_FIRST_LINE_S = 10.0
_EVERY_S = 30.0
_REFRESH_S = 0.1
_MOST_NAMED = 3


class TransferProgress:
    """Told by train.s3 what moved. bars: on a terminal; without, `say` is given the lines."""

    def __init__(
        self, bars: "Progress | None", say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bars = bars
        self._say = say
        self._clock = clock
        self._began = clock()
        self._next = self._began
        self._total = 0
        self._moved = 0
        self._files = 0
        self._count = 0
        self._task = None if bars is None else bars.add_task("", total=None)

    def watch(self, transfers: Sequence[Upload | Download], /) -> "TransferProgress":
        """The plan is made: from now on it is known how much there is.

        Not before is there a bar, which would wipe away what is asked for at the terminal: a yes, or an MFA code.
        """
        self._count = len(transfers)
        self._total = sum(transfer.size_bytes for transfer in transfers)
        self._began = self._clock()
        self._next = self._began + (_FIRST_LINE_S if self._bars is None else 0)
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, total=self._total, description=self._files_done())
            self._bars.start()
        return self

    def moved(self, size_bytes: int) -> None:
        """So many more bytes arrived."""
        self._moved += size_bytes
        self._show()

    def finished(self, _transfer: Upload | Download) -> None:
        """All of a file arrived."""
        self._files += 1
        self._show()

    def _show(self) -> None:
        # Thousands of small files a second may arrive: nobody reads so many numbers, and each costs as much as a file.
        now = self._clock()
        if now < self._next:
            return
        if self._bars is None or self._task is None:
            self._next = now + _EVERY_S
            self._say(self._render_line(now - self._began))
        else:
            self._next = now + _REFRESH_S
            self._bars.update(self._task, completed=self._moved, description=self._files_done())

    def _render_line(self, duration_s: float) -> str:
        rate = self._moved / duration_s
        moved = f"{decimal(self._moved)} of {decimal(self._total)}"
        said = f"{self._files_done()}, {moved}, {decimal(int(rate))}/s"
        if not rate:  # empty files alone until now, or a large one that S3 has not answered for yet
            return said
        left_s = max(self._total - self._moved, 0) / rate
        return f"{said}, {timedelta(seconds=round(left_s))} left"

    def _files_done(self) -> str:
        return f"{self._files}/{self._count} files"


@contextmanager
def transfer_progress(app: App) -> Iterator[TransferProgress]:
    """A bar on the console, gone when the copy is done."""
    if not (sys.stderr.isatty() and app.console.is_terminal):  # rich is a tenth of a second: for who sees it
        yield TransferProgress(None, app.say)
        return
    from rich.progress import (  # noqa: PLC0415 - as above
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    bars = Progress(*columns, console=app.console, transient=True)
    try:
        yield TransferProgress(bars, app.say)
    finally:
        bars.stop()


def describe_transfers(done: Done, began: float) -> str:
    """What was copied, in a line; `began` is time.monotonic() of the beginning."""
    transfers = done.plan.transfers
    if not transfers:
        return "nothing"
    size_bytes = sum(transfer.size_bytes for transfer in transfers)
    duration_s = max(time.monotonic() - began, 0.001)
    said = f"{count_files(len(transfers))}, {decimal(size_bytes)} in {duration_s:.1f} s"
    return f"{said} ({decimal(int(size_bytes / duration_s))}/s)"


def describe_others(done: Done) -> str:
    """What was not copied but left, or deleted: empty, or the end of a sentence."""
    said = ""
    if done.plan.unchanged:
        said += f"; {count_files(len(done.plan.unchanged))} unchanged"
    if done.plan.deletions:
        said += f"; {count_files(len(done.plan.deletions))} deleted"
    return said


def describe_unverified(unverified: Sequence[Download]) -> str:
    """What stage mode says of an object that cannot be compared, for one or more: how many, and a few of them."""
    urls = sorted(str(download.source) for download in unverified)
    named = ", ".join(urls[:_MOST_NAMED])
    if len(urls) > _MOST_NAMED:
        named += f" and {len(urls) - _MOST_NAMED} more"
    if len(urls) == 1:
        return f"S3 has no checksum of 1 object that can be compared, its length alone was: {named}"
    return f"S3 has no checksum of {len(urls)} objects that can be compared, their lengths alone were: {named}"


def count_files(count: int) -> str:
    """In words."""
    return "1 file" if count == 1 else f"{count} files"
