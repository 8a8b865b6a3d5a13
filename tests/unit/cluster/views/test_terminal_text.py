"""Text from other sources is shown on a terminal without effect on it, and is unchanged in a pipe."""

import io
import os
import pty
import subprocess
import sys
import tty
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cluster.app import App
from cluster.commands.shell import LinePrinter
from cluster.views import terminal
from cluster.views.terminal import escape, escape_line, escape_output

TITLE = "\x1b]0;title\x07"
CLEAR = "\x1b[2J\x1b[1;1H"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode 日本 🙂", "plain, ünïcode 日本 🙂"),
        ("a\tb\nc\r\nd", "a\tb\nc\nd"),
        (TITLE, r"\x1b]0;title\x07"),
        (CLEAR, r"\x1b[2J\x1b[1;1H"),
        ("over\rwritten", r"over\rwritten"),
        ("\x9b2J\x9d0;x\x9c\x7f\x00", r"\x9b2J\x9d0;x\x9c\x7f\x00"),
        ("\u202etxt.exe\u202c \u2066a\u2069 \u200f", r"\u202etxt.exe\u202c \u2066a\u2069 \u200f"),
        ("a\u2028b", r"a\u2028b"),
        ("\udcff \ud800", r"\xff \ud800"),
    ],
)
def test_control_characters_are_shown_escaped(text: str, shown: str) -> None:
    assert escape(text) == shown
    assert escape_line(text) == shown.replace("\n", r"\n").replace(r"c\nd", r"c\r\nd")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("a\tb", "a\tb"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m\x1b[0m"),
        ("\x1b[38;2;1;2;3mtrue\x1b[4:3mcurly", "\x1b[38;2;1;2;3mtrue\x1b[4:3mcurly\x1b[0m"),
        (f"{CLEAR}cleared", r"\x1b[2J\x1b[1;1Hcleared"),
        ("\x1b[?25l\x1b[>0m\x1b[1", r"\x1b[?25l\x1b[>0m\x1b[1"),
        ("a\nb", r"a\nb"),
        ("10%\r50%\r100%", "100%"),
        ("of Windows\r", "of Windows"),
    ],
)
def test_output_of_programs_keeps_its_colours(line: str, shown: str) -> None:
    assert escape_output(line) == shown


def read_terminal(write: Callable[[int], None]) -> bytes:
    """Returns what a terminal receives when `write` writes to its descriptor."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    write(theirs)
    os.close(theirs)
    message = b""
    with suppress(OSError):  # the other side is closed
        while piece := os.read(ours, 1 << 16):
            message += piece
    os.close(ours)
    return message


def test_lines_of_nodes_are_escaped_on_a_terminal() -> None:
    """In a pipe, they are unchanged."""
    line = f"{TITLE}\x1b[32mok\x1b[0m\udcff".encode(errors="surrogateescape")

    def on(descriptor: int) -> None:
        LinePrinter(stdout=descriptor, stderr=descriptor).take("node-0", "stdout", line + b"\n")

    assert read_terminal(on) == b"[node-0] \\x1b]0;title\\x07\x1b[32mok\x1b[0m\\xff\x1b[0m\n"
    source, sink = os.pipe()
    on(sink)
    os.close(sink)
    with os.fdopen(source, "rb") as stream:
        assert stream.read() == b"[node-0] " + line + b"\n"


PROGRAM = """
import sys
from pathlib import Path
from cluster.app import App
from cluster.main import _fail
from cluster.views.terminal import print_bytes_unchanged
from foundation.progress import Event
print_bytes_unchanged(sys.stdout)
app = App(config_path=Path("cluster.toml"))
text = sys.argv[1] + "[red]:warning:[/red]"
app.print_line("line " + text + "\\nin it")
app.print("print " + text)
app.print_json({"key": text})
app.message("message " + text)
app.message("message " + text, style="yellow")
app.report(Event(kind="start", what="step " + text))
app.report(Event(kind="done", what="step " + text))
app.close()
_fail("error " + text, "hint " + text)
"""


def test_all_output_is_escaped_on_a_terminal() -> None:
    def run(descriptor: int) -> None:
        words = [sys.executable, "-c", PROGRAM, f"{TITLE}{CLEAR}\u202e\udcff"]
        env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200"}
        subprocess.run(words, stdout=descriptor, stderr=descriptor, stdin=descriptor, env=env, check=True)

    output = read_terminal(run).decode()
    shown = r"\x1b]0;title\x07\x1b[2J\x1b[1;1H\u202e\xff[red]:warning:[/red]"
    assert f"line {shown}\\nin it" in output
    for what in ("print", "message", "step", "error", "hint"):
        assert f"{what} {shown}" in output, output
    for sign in ("\x07", "\x1b]", "\x1b[2J", "\x1b[1;1H", "\u202e"):
        assert sign not in output, (sign, output)


@pytest.mark.parametrize(
    ("variables", "on_terminal", "colour"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "CLICOLOR": "0"}, True, False),
        ({"FORCE_COLOR": "1", "CLICOLOR": "0"}, False, True),
    ],
)
def test_colours(
    *, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], on_terminal: bool, colour: bool
) -> None:
    monkeypatch.setattr(os, "environ", variables)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: on_terminal)
    assert terminal.has_colour(stream) == colour


def test_a_pipe_gets_every_byte_unchanged() -> None:
    name = os.fsencode(f"{TITLE}\x1b[31m{CLEAR}") + b"\xff\n"
    words: list[bytes | str] = [sys.executable, "-c", PROGRAM, name]
    done = subprocess.run(words, capture_output=True, check=True, env=os.environ | {"LC_ALL": "C.UTF-8"})
    assert b"line " + name + b"[red]:warning:[/red]\nin it\n" in done.stdout
    for what in (b"message ", b"ok step ", b"error: error ", b"  try: hint "):
        assert what + name[:-2] in done.stderr, done.stderr


def test_a_question_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("click.confirm", lambda question, **_: bool(asked.append(question)))
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    App(config_path=Path("cluster.toml")).confirm(f"Delete s3://{TITLE}?", yes=False)
    assert asked == [r"Delete s3://\x1b]0;title\x07? [y: yes; n or Enter: no]"]
