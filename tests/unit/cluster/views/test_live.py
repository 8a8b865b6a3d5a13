"""What a job looks like on a terminal, and without one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TextIO

import pytest

from cluster.app import App
from cluster.views.live import DRAW_EVERY_S, JobDisplay
from job_events import bar, line, result, speed, state, warnings
from node.protocol import JobSpec, LogWanted
from project import REPOSITORY
from terminal import Terminal
from train.follow.events import ALL, Event

JOB = JobSpec(id="j", name="mnist", workers=3, servers=0)
NUMPY = "AttributeError: module 'numpy' has no attribute 'bool'."


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    made = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    yield made
    made.close()


@contextmanager
def display(
    terminal: Terminal | None = None,
    *events: Event,
    stdout: TextIO | None = None,
    plain: bool = False,
    wanted: LogWanted = ALL,
) -> Iterator[JobDisplay]:
    """A display of a running job. stdout: instead of the terminal. events: what the job has printed."""
    with ExitStack() as stack:
        if terminal is not None:
            stack.enter_context(redirect_stderr(stack.enter_context(terminal.open())))
            stack.enter_context(redirect_stdout(stdout or stack.enter_context(terminal.open())))
        shown = JobDisplay(App(config_path=Path("cluster.toml")), JOB, head="node-0", plain=plain, wanted=wanted)
        try:
            for event in (state("running"), *events):
                shown.take(event)
            yield shown
        finally:
            shown.close()


def test_without_a_terminal_every_line_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    with display() as shown:
        for event in (line("[bold]no markup[/]\x1b[2J"), speed(0, 20, 2000.0), line(NUMPY), result()):
            shown.take(event)
        shown.message("a message")
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "[worker 0 node-0] [bold]no markup[/]\x1b[2J",
        "[worker 0 node-0] Epoch[0] Batch [0-20]\tSpeed: 2000.0 samples/sec\taccuracy=0.25\tcross-entropy=0.125",
        f"[worker 0 node-0] {NUMPY}",
    ]
    hint, message, summary = captured.err.splitlines()
    assert hint.startswith("hint [worker 0 node-0]: numpy is too new")
    assert message == "a message"
    assert summary == "2.00 k samples/s, 1 worker, epoch 0, accuracy 0.25, cross-entropy 0.125, 2 min 3 s"


def test_a_warning_is_repeated_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with display() as shown:
        for event in (warnings("one", "other"), warnings("one"), speed(0, 20, 2000.0), result()):
            shown.take(event)
    captured = capsys.readouterr()
    assert "warning" not in captured.out  # which may be the same file
    first, second, _, last = captured.err.splitlines()
    assert (first, second, last) == ("warning: one", "warning: other", "warning: one")


def test_speeds_are_in_the_view_and_lines_above_it(terminal: Terminal) -> None:
    with display(terminal) as shown:
        shown.take(line("[bold]first[/] \x1b[2J\x1b]0;title\x07line"))
        for rank, rate in enumerate((2000.0, 2000.0, 1000.0)):
            shown.take(speed(rank, 20, rate))
        shown.take(line(NUMPY, 1))
        shown.message("a message")
        terminal.wait_for(lambda: "a message" in terminal.screen.text)
        first, hint, rest, error, message, header, *rows = terminal.settle().splitlines()
        assert first == r"[worker 0 node-0] [bold]first[/] \x1b[2J\x1b]0;title\x07line"
        assert error == f"[worker 1 node-1] {NUMPY}"
        assert hint.startswith("hint [worker 1 node-1]: numpy is too new")
        assert rest.lstrip().startswith("packages`")
        assert message == "a message"
        assert header.split() == ["rank", "node", "epoch", "batch", "samples/s", "accuracy", "cross-entropy"]
        assert [row.split() for row in rows[:3]] == [
            ["0", "node-0", "0", "20", "2.00", "k", "0.25", "0.125"],
            ["1", "node-1", "0", "20", "2.00", "k", "0.25", "0.125"],
            ["2", "node-2", "0", "20", "1.00", "k", "slow", "0.25", "0.125"],
        ]
        assert rows[3].startswith("job mnist: running ")
        assert "5.00 k samples/s, 3 workers, 1 slow, epoch 0, accuracy 0.25" in rows[3]
        shown.take(result())
    lines = terminal.settle().splitlines()
    assert lines[:5] == [first, hint, rest, error, message]
    assert lines[5].startswith("5.00 k samples/s, 3 workers, 1 slow, ")
    assert "Speed" not in terminal.raw


def test_bars_are_drawn_below_the_lines(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a terminal without a name, as in a chroot."""
    monkeypatch.setattr("os.ttyname", lambda _: os.stat("/no/terminal"))
    with display(terminal) as shown:
        shown.take(bar("inner: 10%|\x1b[2J 漢" + 100 * "字"))
        terminal.wait_for(lambda: "inner: 10%" in terminal.screen.text)
        shown.take(line("a line"))
        shown.take(bar("inner: 20%|", at=103.0))
        terminal.wait_for(lambda: "inner: 20%" in terminal.screen.text)
        assert terminal.settle().splitlines()[:2] == ["[worker 0 node-0] a line", "[worker 0 node-0] inner: 20%|"]
        shown.take(bar("", at=104.0))
        shown.take(line("inner: 100%|", at=104.0))
        terminal.wait_for(lambda: "20%" not in terminal.screen.text)
    assert terminal.settle().splitlines() == ["[worker 0 node-0] a line", "[worker 0 node-0] inner: 100%|"]
    assert "\x1b[2J" not in terminal.raw


def test_without_a_terminal_a_bar_is_shown_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    with display(wanted=LogWanted(ranks=(0,))) as shown:
        for second in range(150):
            for rank in (0, 1):
                shown.take(bar(f"epochs\n{second}/150", rank, at=100.0 + second))
        shown.take(bar("", at=250.0))
        shown.take(bar("next", at=260.0))
    assert capsys.readouterr().out.splitlines() == [
        f"[worker 0 node-0] {row}" for row in ("epochs", "60/150", "epochs", "120/150")
    ]


@pytest.mark.parametrize(
    ("variable", "value", "plain", "forbidden"),
    [("TERM", "dumb", False, "\x1b[J"), ("TERM", "xterm", True, "\x1b[J"), ("NO_COLOR", "1", False, "\x1b[1m")],
)
def test_a_terminal_is_asked_for_no_more_than_it_can(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, forbidden: str, *, plain: bool
) -> None:
    monkeypatch.setenv(variable, value)
    with display(terminal, speed(0, 20, 2000.0), plain=plain) as shown:
        shown.take(line("the end"))
        terminal.wait_for(lambda: "the end" in terminal.screen.text)
    terminal.settle()
    assert forbidden not in terminal.raw


def test_lines_in_a_file_are_complete_even_with_a_view(terminal: Terminal, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, display(terminal, speed(0, 20, 2000.0), stdout=log) as shown:
        shown.take(line(NUMPY))
        terminal.wait_for(lambda: "hint" in terminal.screen.text)
        terminal.wait_for(lambda: "job mnist: running" in terminal.screen.text)
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.partition("] ")[2][:8] for line in lines] == ["Epoch[0]", NUMPY[:8]]
    assert NUMPY not in terminal.settle()


def test_the_terminal_is_free_for_a_question(terminal: Terminal) -> None:
    with display(terminal, speed(0, 20, 2000.0)) as shown:
        shown.take(line("before"))
        terminal.wait_for(lambda: "job mnist" in terminal.screen.text)
        with shown.paused():
            assert terminal.settle() == "[worker 0 node-0] before"
            shown.take(line("meanwhile"))
            time.sleep(2 * DRAW_EVERY_S)
            assert terminal.settle() == "[worker 0 node-0] before"
            os.write(terminal.theirs, b"Stop the job?\n")
        terminal.wait_for(lambda: "job mnist" in terminal.screen.text)
        text = terminal.settle()
    assert text.splitlines()[:3] == ["[worker 0 node-0] before", "Stop the job?", "[worker 0 node-0] meanwhile"]


VIEW = """
import sys, time
from pathlib import Path
from cluster.app import App
from cluster.views.live import JobDisplay
from job_events import line, state
from node.protocol import JobSpec
job = JobSpec(id="j", name="mnist", workers=1, servers=0)
shown = JobDisplay(App(config_path=Path("cluster.toml")), job, head="node-0")
shown.take(state("running"))
deadline = time.monotonic() + 60
while not Path("end").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
shown.take(line("the end"))
shown.close()
"""
SHELL = """
set -m
"$PYTHON" -c "$VIEW"
echo typed while it was stopped
bg >/dev/null
sleep 0.5
echo typed while it ran in the background
: >reported
while [ ! -e go ]; do sleep 0.05; done
fg >/dev/null
"""


def test_after_ctrl_z_the_view_leaves_alone_what_the_shell_shows(terminal: Terminal, tmp_path: Path) -> None:
    support = [str(REPOSITORY), *(path for path in sys.path if "tests/support" in path)]
    child = subprocess.Popen(
        ["setsid", "--ctty", "bash", "-c", SHELL],
        stdin=terminal.theirs,
        stdout=terminal.theirs,
        stderr=terminal.theirs,
        cwd=tmp_path,
        env=os.environ | {"PYTHON": sys.executable, "VIEW": VIEW, "PYTHONPATH": os.pathsep.join(support)},
    )
    try:
        terminal.wait_for(lambda: "job mnist: running" in terminal.screen.text, 30)
        terminal.type("\x1a")
        terminal.wait_for((tmp_path / "reported").exists, 30)
        shown = [row for row in terminal.settle().splitlines() if row.startswith(("typed", "job mnist"))]
        assert shown == ["typed while it was stopped", "typed while it ran in the background"]
        (tmp_path / "go").touch()
        terminal.wait_for(lambda: "job mnist: running" in terminal.screen.text, 30)
        (tmp_path / "end").touch()
        assert child.wait(30) == 0
        rows = [row for row in terminal.settle().splitlines() if row.startswith(("typed", "job mnist", "[worker"))]
        assert rows == [*shown, "[worker 0 node-0] the end"]
    finally:
        child.kill()
        child.wait()


@pytest.mark.timeout(20)
def test_ctrl_z_in_the_middle_of_an_event(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view is hidden by the thread that has its lock."""
    stopped: list[int] = []
    monkeypatch.setattr("cluster.views.live.signal.raise_signal", stopped.append)
    monkeypatch.setattr("cluster.views.live.Progress.take", lambda *_: os.kill(os.getpid(), signal.SIGTSTP))
    with display(terminal):
        assert stopped == [signal.SIGTSTP]


@pytest.mark.parametrize("plain", [False, True])
def test_equal_tracebacks_are_shown_once(capsys: pytest.CaptureFixture[str], *, plain: bool) -> None:
    with display(plain=plain) as shown:
        for rank in range(5):
            for text in ("Traceback (most recent call last):", '  File "own.py", line 1', "ValueError: x"):
                shown.take(line(text, rank))
        shown.take(result())
    captured = capsys.readouterr()
    assert captured.out.count("ValueError: x") == (5 if plain else 1)
    assert ("the same traceback on 5 processes" in captured.err) is not plain
