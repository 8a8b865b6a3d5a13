"""How far a copy is: a bar on a terminal, two lines elsewhere."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from train.s3.plan import Download, Upload


class TransferProgress:
    """Told by train.s3 what moved. Prints nothing by itself where the console is no terminal."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._files = 0
        self._count = 0
        self._task = bars.add_task("", total=None, visible=False)

    def watch(self, transfers: Sequence[Upload | Download], /) -> "TransferProgress":
        """The plan is made: from now on it is known how much there is."""
        self._count = len(transfers)
        total = sum(transfer.size_bytes for transfer in transfers)
        self._bars.update(self._task, total=total, visible=True, description=self._files_done())
        return self

    def moved(self, size_bytes: int) -> None:
        """So many more bytes arrived."""
        self._bars.update(self._task, advance=size_bytes)

    def finished(self, _transfer: Upload | Download) -> None:
        """All of a file arrived."""
        self._files += 1
        self._bars.update(self._task, description=self._files_done())

    def _files_done(self) -> str:
        return f"{self._files}/{self._count} files"


@contextmanager
def transfer_progress(console: Console) -> Iterator[TransferProgress]:
    """A bar on the console, gone when the copy is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield TransferProgress(bars)


def describe_transfers(transfers: Sequence[Upload | Download], began: float) -> str:
    """What was copied, in a line; `began` is time.monotonic() of the beginning."""
    size_bytes = sum(transfer.size_bytes for transfer in transfers)
    duration_s = max(time.monotonic() - began, 0.001)
    files = "1 file" if len(transfers) == 1 else f"{len(transfers)} files"
    return f"{files}, {decimal(size_bytes)} in {duration_s:.1f} s ({decimal(int(size_bytes / duration_s))}/s)"
