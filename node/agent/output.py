r"""Turns the bytes that a process prints into lines and into its progress bars, as a terminal would show them.

A bar is redrawn in place: with a carriage return or backspaces, or, if there are several, with codes that move the
cursor up (nested tqdm, rich). So this keeps the rows that may be redrawn, with a cursor in them. A row becomes a line
of output when the cursor has left it for the following rows and does not come back. Until then the rows are the current
bar; so is a line that is not complete yet. Other lines are passed on at once.

Each redraw replaces a row as a whole, as all usual programs do: this keeps no columns.

Bytes that are not UTF-8 become lone surrogates (Python's surrogateescape), from which the bytes can be restored. A
terminal shows them as \xff (cluster/views/terminal.py), files and pipes get the bytes. Pure.
"""

import codecs
import re
from typing import NamedTuple

LONGEST = 1 << 16  # characters; a longer line is cut into pieces of this length
LONGEST_BAR = 300  # characters of each row of a bar
MOST_ROWS = 32  # that may be redrawn; with more, the first becomes a line
MOST_BARS = 8  # rows of them are shown
BAR_EVERY_S = 0.5
SETTLE_S = 0.1  # a bar that has changed is first shown after this time: a line may be printed in several parts
HOLD_S = 0.5  # for the cursor to come back
# What a row is split at. CSI codes (ECMA-48) other than colours, which stay in the text.
_CONTROL = re.compile(r"[\n\r]|\x08+|\x1b\[([0-9;?]{0,16})([A-Za-ln-z])")
_REDRAW = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-ln-z]")
_CUT = re.compile(r"(?:\r+|\x1b(?:\[[0-9;?]{0,16})?)\Z")  # means something only with what follows
_RETURNS = re.compile(r"\r+\n")
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,40}m")


class Item(NamedTuple):
    """A line of output, or the process's current bar: its rows, separated by newlines; "" if it is gone."""

    text: str
    is_bar: bool = False


class _Row:
    """A row on the terminal. is_drawn: it was redrawn. is_fresh: the cursor is at its start."""

    def __init__(self, now: float = 0.0, *, is_drawn: bool = False) -> None:
        self.text, self.at, self.is_drawn, self.is_fresh = "", now, is_drawn, False

    @property
    def is_erased(self) -> bool:
        """Whether a bar was here, and nothing has followed."""
        return self.is_drawn and self.is_blank and not self.is_fresh

    @property
    def is_blank(self) -> bool:
        """Whether it shows nothing."""
        return not self.text or self.text.isspace()


class OutputLines:
    """The output of one process. All times are by one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._held = ""  # the beginning of a control sequence
        self._rows = [_Row()]
        self._cursor = 0
        self._left_at = 0.0  # when the last row became a line
        self._bar = ""  # the one that was passed on last
        self._bar_at = float("-inf")
        self._changed_at: float | None = None  # since when the rows differ from it
        self._items: list[Item] = []

    def feed(self, data: bytes, now: float) -> list[Item]:
        """Adds bytes. Returns the lines that are now complete and, if it is time to show it, the changed bar."""
        text = self._held + self._decoder.decode(data)
        self._held = ""
        if "\r" in text or "\x1b" in text:
            cut = _CUT.search(text)
            if cut is not None:
                self._held, text = cut[0], text[: cut.start()]
            text = _RETURNS.sub("\n", text)
        self._write(text, now)
        self._leave_rows(now)
        if self._items and not self._is_drawing:
            self._changed_at = None  # the incomplete line has only begun
        self._show_bar(now)
        return self._take()

    def flush(self) -> list[Item]:
        """Returns the rest at the end of the stream: the last state of a bar is a line."""
        self._write(self._held + self._decoder.decode(b"", final=True), self._left_at)
        self._held = ""
        rows, self._rows, self._cursor, self._changed_at = self._rows, [_Row()], 0, None
        for row in rows:
            if row.text:
                self._put(row)
        if self._bar:
            self._bar = ""
            self._items.append(Item("", is_bar=True))
        return self._take()

    @property
    def due_at(self) -> float | None:
        """When to call `feed` again if nothing is printed before; None: not before that."""
        times = []
        if self._changed_at is not None:
            times.append(self._find_bar_time(self._changed_at))
        if self._cursor:
            times.append(self._rows[0].at + HOLD_S)
        return min(times, default=None)

    # -- the rows --------------------------------------------------------------------------------------------------

    @property
    def _is_drawing(self) -> bool:
        return len(self._rows) > 1 or self._rows[0].is_drawn

    def _write(self, text: str, now: float) -> None:
        is_plain = "\r" not in text and "\x08" not in text and ("\x1b" not in text or _REDRAW.search(text) is None)
        if is_plain and not self._is_drawing:  # as most output is
            *lines, rest = (self._rows[0].text + text).split("\n")
            for line in lines:
                self._put_text(line)
                self._left_at = now
            self._set_text(rest)
            return
        position = 0
        for found in _CONTROL.finditer(text):
            self._print(text[position : found.start()], now)
            position = found.end()
            control = found[0]
            if control == "\n":
                self._end_row(now)
            elif control == "\r":
                self._start_row()
            elif control[0] == "\x08":
                row = self._rows[self._cursor]
                row.is_drawn = row.is_drawn or bool(row.text)
                row.text = row.text[: -len(control)]
            else:
                self._obey(found[2], found[1], now)
        self._print(text[position:], now)

    def _print(self, text: str, now: float) -> None:
        if not text:
            return
        row = self._rows[self._cursor]
        text = text if row.is_fresh else row.text + text
        row.is_fresh, row.at = False, now
        self._set_text(text)

    def _set_text(self, text: str) -> None:
        """Sets the text of the cursor's row. Of a very long one, all but the end becomes lines."""
        if len(text) > LONGEST:
            for _ in range(self._cursor):
                self._put(self._rows.pop(0))
            self._cursor = 0
            while len(text) > LONGEST:
                self._items.append(Item(text[:LONGEST]))
                text = text[LONGEST:]
        self._rows[self._cursor].text = text

    def _start_row(self) -> None:
        """Moves the cursor to the start of its row, whose text is then replaced."""
        row = self._rows[self._cursor]
        row.is_drawn = row.is_fresh = True

    def _end_row(self, now: float) -> None:
        row = self._rows[self._cursor]
        row.at = now
        if self._cursor + 1 < len(self._rows):
            self._cursor += 1
            self._start_row()
        elif row.is_drawn or (self._cursor and row.is_blank):  # tqdm skips rows for a bar further down
            self._rows.append(_Row(now))
            self._cursor += 1
            self._limit_rows(now)
        else:  # nobody redraws this one, nor those above it
            for one in self._rows:
                self._put(one)
            self._rows, self._cursor, self._left_at = [_Row(now)], 0, now

    def _leave_rows(self, now: float) -> None:
        """Turns the first rows into lines if the cursor does not come back to them."""
        while self._cursor and now >= self._rows[0].at + HOLD_S:
            self._left_at = self._rows[0].at
            self._put(self._rows.pop(0))
            self._cursor -= 1
        if len(self._rows) == 1 and self._rows[0].is_erased:
            self._rows = [_Row(now)]

    def _limit_rows(self, now: float) -> None:
        while len(self._rows) > MOST_ROWS:
            self._left_at = now
            self._put(self._rows.pop(0))
            self._cursor = max(0, self._cursor - 1)

    def _obey(self, code: str, argument: str, now: float) -> None:
        """Moves the cursor up, or erases a row. Other codes, such as that which hides the cursor, are left out."""
        if code == "A":
            self._go_up(min(max(1, int(argument)), MOST_ROWS) if argument.isdigit() else 1, now)
        elif code == "K":
            row = self._rows[self._cursor]
            row.text = "" if row.is_fresh or argument in ("1", "2") else row.text

    def _go_up(self, count: int, now: float) -> None:
        missing = max(0, count - self._cursor)  # rows that have become lines
        self._rows[:0] = [_Row(self._left_at, is_drawn=True) for _ in range(missing)]
        self._cursor += missing - count
        row = self._rows[self._cursor]
        row.at = now
        self._start_row()
        self._limit_rows(now)

    # -- items -----------------------------------------------------------------------------------------------------

    def _put(self, row: _Row) -> None:
        """Turns a row into a line, unless it was erased."""
        if not row.is_drawn:
            self._put_text(row.text)
        elif not row.is_blank:
            self._put_text(row.text.rstrip())

    def _put_text(self, text: str) -> None:
        for start in range(0, len(text) or 1, LONGEST):
            self._items.append(Item(text[start : start + LONGEST]))

    def _render_bar(self) -> str:
        rows = [_COLOUR.sub("", row.text[:LONGEST_BAR]).rstrip() for row in self._rows if not row.is_blank]
        return "\n".join(rows[:MOST_BARS])

    def _find_bar_time(self, changed_at: float) -> float:
        """When to pass on a change. An end is not delayed: the bar's last state is a line already."""
        settled_at = changed_at + SETTLE_S
        return max(settled_at, self._bar_at + BAR_EVERY_S) if self._render_bar() else settled_at

    def _show_bar(self, now: float) -> None:
        bar = self._render_bar()
        if bar == self._bar:
            self._changed_at = None
            return
        if self._changed_at is None:
            self._changed_at = now
        if now >= self._find_bar_time(self._changed_at):
            self._bar, self._bar_at, self._changed_at = bar, now, None
            self._items.append(Item(bar, is_bar=True))

    def _take(self) -> list[Item]:
        items, self._items = self._items, []
        return items
