"""Escapes control characters in untrusted text on a terminal, as Python's repr does.

Names, errors and output come from nodes, from S3 and from this machine's files. A terminal obeys control characters in
them: it sets its title or the clipboard, moves the cursor, or shows a line backwards. Everything that `cluster` prints
on a terminal goes through this module. Output to a pipe or a file, and all JSON, is unchanged.

What a terminal can do is also decided here, and nowhere else: `can_draw`, `has_colour` and `find_columns`.
"""

import codecs
import os
import re
from typing import IO, TextIO

from cluster.views.layout import DEFAULT_COLUMNS, wrap

# C0 except tab and newline, DEL, C1; marks that change the text direction; line separators; lone surrogates.
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL = re.compile(f"[{_CONTROLS}]")
_CONTROL_OF_LINE = re.compile(f"[\n{_CONTROLS}]")
# SGR, ECMA-48 8.3.117: colours and other attributes of characters.
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,40}m")
_COLOUR_OR_CONTROL = re.compile(rf"{_COLOUR.pattern}|[\n{_CONTROLS}]")
_RESET = "\x1b[0m"
_LINE_BREAK = {"\n": "\\n", "\r": "\\r"}
_STYLES = {"red": "31", "green": "32", "yellow": "33", "dim": "2"}


def can_draw(stream: IO[str]) -> bool:
    """Whether a stream is a terminal that can move its cursor, as spinners, bars and the live view need it."""
    return stream.isatty() and os.environ.get("TERM", "") not in {"", "dumb", "unknown"}


def has_colour(stream: IO[str]) -> bool:
    """Whether to write colours to a stream: to a terminal that can draw, unless the user's environment decides.

    NO_COLOR and CLICOLOR=0 turn colours off. FORCE_COLOR turns them on, also in a pipe or a file; FORCE_COLOR=0 off.
    """
    if os.environ.get("NO_COLOR"):
        return False
    forced = os.environ.get("FORCE_COLOR")
    if forced:
        return forced != "0"
    return os.environ.get("CLICOLOR") != "0" and can_draw(stream)


def paint(text: str, style: str) -> str:
    """Returns text in a style: red, green, yellow or dim; "" leaves it as it is. Pure."""
    return f"\x1b[{_STYLES[style]}m{text}{_RESET}" if style else text


def escape(text: str) -> str:
    r"""Escapes control characters in text of any number of lines as \x1b, \x9b or \u202e; keeps tabs. Pure."""
    return text if text.isprintable() else _CONTROL.sub(_show, text.replace("\r\n", "\n"))


def escape_line(text: str) -> str:
    """Like escape, for text of one line: newlines are also escaped. Pure."""
    return text if text.isprintable() else _CONTROL_OF_LINE.sub(_show, text)


def escape_output(line: str) -> str:
    """Escapes a line of a program's output, but keeps colours, and resets them at its end. Pure.

    For text that is redrawn with carriage returns, such as a progress bar, return the last state.
    """
    if line.isprintable():
        return line
    shown = _COLOUR_OR_CONTROL.sub(_show, line.rstrip("\r").rsplit("\r", 1)[-1])
    return f"{shown}{_RESET}" if "\x1b" in shown else shown


def escape_plain(line: str) -> str:
    """Like escape_output, but without colours. Pure."""
    return _COLOUR.sub("", escape_output(line))


def _show(match: re.Match[str]) -> str:
    found = match[0]
    if len(found) > 1:  # a colour
        return found
    code = ord(found)
    if 0xDC80 <= code <= 0xDCFF:  # Python's surrogateescape: a byte that is not UTF-8
        code -= 0xDC00
    return _LINE_BREAK.get(found) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def write(stream: IO[str], text: str, *, one_line: bool = False, wrapped: bool = False, style: str = "") -> None:
    """Writes text and a newline: escaped on a terminal, elsewhere unchanged.

    one_line: newlines in the text are also escaped. wrapped: lines are wrapped to the terminal's width. style: see
    paint; ignored where colours are off.
    """
    if stream.isatty():
        text = escape_line(text) if one_line else escape(text)
        text = wrap(text, find_columns(stream)) if wrapped else text
    if has_colour(stream):
        text = paint(text, style)
    write_unchanged(stream, text)


def write_unchanged(stream: IO[str], text: str) -> None:
    """Writes text and a newline. Raises OSError with the stream's name."""
    try:
        stream.write(f"{text}\n")
        stream.flush()
    except OSError as error:
        error.filename = str(stream.name).strip("<>")
        raise


def find_columns(stream: IO[str]) -> int:
    """Returns the width of a stream's terminal; 80 if the stream is not a terminal or does not report its size."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
    except (OSError, ValueError):  # ValueError: a stream without a file
        return DEFAULT_COLUMNS


def print_bytes_unchanged(stream: TextIO) -> None:
    """Lets a stream write any text: undecodable bytes of file names unchanged, other unencodable characters escaped."""
    codecs.register_error("cluster.unchanged", _encode_unchanged)
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="cluster.unchanged")


def _encode_unchanged(error: UnicodeError) -> tuple[str | bytes, int]:
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)
