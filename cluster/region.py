"""Rows at the bottom of a terminal that are drawn again and again, and lines that scroll away above them."""

import os
import select
from collections.abc import Sequence

GREATEST_WRITE = 1 << 14  # bytes; so that a slow terminal is asked often, and not for long


class Region:
    """Draws on a terminal by its file descriptor. The cursor stands at the beginning of the line under the rows."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rows: tuple[str, ...] = ()
        self._lengths: tuple[int, ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        """The terminal's columns and lines; 80 and 24 where it does not know."""
        columns, lines = os.get_terminal_size(self._descriptor)
        return columns or 80, lines or 24

    def draw(self, rows: Sequence[tuple[str, int]], above: str = "") -> None:
        """Show `above`, whole lines, over the rows, and then these rows: each as it is printed, and how long it looks.

        Nothing is written where nothing changes. Raises OSError when the terminal is gone.
        """
        texts = tuple(text for text, _ in rows)
        if texts == self._rows and not above:
            return
        # One write: a terminal that draws between two would show the region gone.
        drawn = "".join(f"{text}\n" for text in texts)
        data = f"{self._erasure()}{above}{drawn}".encode("utf-8", "replace")
        self._rows, self._lengths = texts, tuple(length for _, length in rows)
        self._write(data)

    def _erasure(self) -> str:
        """What takes the rows away. In a window that was made narrower each of them may fill several lines."""
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
            except BlockingIOError:  # somebody who shares the terminal has made it non-blocking
                select.select([], [self._descriptor], [])
