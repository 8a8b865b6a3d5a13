"""A terminal to test with: a pty whose output is drawn on a screen, as a terminal would draw it."""

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from collections.abc import Callable
from typing import TextIO

from waits import until

SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


class Screen:
    """Lines of text with a cursor, including lines that scrolled off the top. Knows only what our own output uses."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.broken: list[str] = []  # the part that fit of each row longer than the screen
        self.rows: list[str] = [""]
        self.row = self.column = 0

    def write(self, text: str) -> None:
        position = 0
        while position < len(text):
            match = SEQUENCE.match(text, position)
            if match:
                self._obey(match[2], match[1])
                position = match.end()
                continue
            self._put(text[position])
            position += 1

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row += 1
            if self.row == len(self.rows):
                self.rows.append("")
        elif character == "\t":
            self.column = min(self.columns - 1, (self.column // 8 + 1) * 8)
        elif character >= " ":
            if self.column == self.columns:
                self.broken.append(self.rows[self.row])
                self._put("\n")
                self.column = 0
            line = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1
        else:
            raise AssertionError(f"not for a terminal: {character!r}")

    def _obey(self, command: str, argument: str) -> None:
        if command == "A":
            top = max(0, len(self.rows) - self.lines)
            self.row = max(top, self.row - int(argument or 1))
        elif command == "J":
            self.rows[self.row] = self.rows[self.row][: self.column]
            del self.rows[self.row + 1 :]
        elif command == "K":
            self.rows[self.row] = self.rows[self.row][: self.column] if argument in ("", "0") else ""
        elif command not in ("m", "h", "l"):  # colours, and whether the cursor is shown
            raise AssertionError(f"unknown: {command} {argument}")

    def __repr__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """All text from the first line on, without the empty line of the cursor."""
        return "\n".join(row.rstrip() for row in self.rows).rstrip("\n")


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
        rest = b""
        while True:
            try:
                data = rest + os.read(self._ours, 1 << 16)
            except OSError:  # no process has the other side open
                return
            text = data.decode("utf-8", "ignore")
            cut = text.rfind("\x1b")
            # An incomplete sequence is kept until the rest arrives.
            if cut >= 0 and SEQUENCE.match(text, cut) is None and len(text) - cut < 16:
                rest, text = text[cut:].encode(), text[:cut]
            else:
                rest = b""
            self.screen.write(text)
            self.raw += text
