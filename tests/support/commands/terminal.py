"""A terminal to test with: a pty whose output pyte draws on a screen."""

import codecs
import fcntl
import os
import pty
import struct
import termios
import threading
from collections.abc import Callable
from typing import TextIO

import pyte

from waits import until


class Screen(pyte.HistoryScreen):
    """What a terminal shows, and the lines that scrolled off its top."""

    def __init__(self, columns: int, lines: int) -> None:
        super().__init__(columns, lines, history=10_000)
        self.broken: list[str] = []  # the part that fit of each row longer than the screen
        self._stream = pyte.Stream(self)

    def write(self, text: str) -> None:
        self._stream.feed(text)

    def draw(self, data: str) -> None:
        for character in data:
            if self.cursor.x == self.columns:
                self.broken.append(self.display[self.cursor.y])
            super().draw(character)

    def __repr__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """All text from the first line on, without the empty lines below it."""
        above = ["".join(row[at].data for at in range(self.columns)) for row in list(self.history.top)]
        return "\n".join(row.rstrip() for row in (*above, *self.display)).rstrip("\n")


class Terminal:
    """A pty of a given size. Programs write to `theirs`; `screen` shows their output, and `raw` has it unchanged."""

    def __init__(self, columns: int = 100, lines: int = 30) -> None:
        self.screen = Screen(columns, lines)
        self.raw = ""
        self._marks = 0
        self._ours, self.theirs = pty.openpty()
        self.resize(columns, lines)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def open(self) -> TextIO:
        return os.fdopen(os.dup(self.theirs), "w")

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        until(condition, self.screen, timeout_s=timeout_s)

    def settle(self) -> str:
        """Waits until all output has been drawn; returns the screen's text."""
        self._marks += 1
        mark = f"\x1b[0;{self._marks}m"
        os.write(self.theirs, mark.encode())
        self.wait_for(lambda: mark in self.raw)
        return self.screen.text

    def close(self) -> None:
        os.close(self.theirs)
        self._reader.join()
        os.close(self._ours)

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        while True:
            try:
                text = decoder.decode(os.read(self._ours, 1 << 16))
            except OSError:  # no process has the other side open
                return
            self.screen.write(text)
            self.raw += text
