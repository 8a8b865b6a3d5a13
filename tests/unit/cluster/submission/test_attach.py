"""`cluster train` submits a job and is attached to it: Ctrl-C, SIGTERM, and a lost head."""

import io
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, cast

import pytest
from msgspec.structs import replace

from cluster.app import App
from cluster.submission import attach
from cluster.submission.attach import Interrupts, ask, attend
from cluster.submission.preparation import Submission
from foundation.errors import JobError
from job_channels import BROKEN, LOG, Channel, FakeHead, channel, encode, make_order
from job_world import node
from train.follow.events import EventReader, render_line
from train.follow.head import HeadGoneError
from train.follow.run import submit

ORDER = make_order()
STARTED = b'{"job":"j1","state":"starting"}\n'
STOPPED = {"state": "stopped", "exit_code": 130, "error": None, "left": {}}


@pytest.mark.parametrize(
    ("typed", "choice"),
    [
        ("stop\n", "stop"),
        ("what\nLeave\n", "leave"),
        ("\n", "continue"),
        ("", "leave"),
        (" s \n", "stop"),
    ],
)
def test_the_question_is_asked_until_it_is_answered(
    typed: str, choice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert ask() == choice
    assert "[s: stop; l: leave it running; c or Enter: continue to watch]" in capsys.readouterr().err


def test_the_second_signal_is_raised_at_once() -> None:
    """The first is remembered."""
    with Interrupts() as interrupts:
        interrupts.check()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.number == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        interrupts.forget()
        interrupts.check()
        with interrupts.at_once(), pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def interrupting(message: bytes) -> Callable[[Sequence[str]], Any]:
    """Returns a head that sends this process SIGINT together with its answer to a submission."""

    def answer(words: Sequence[str]) -> Any:
        if words[0] == "stop":
            return channel(encode([{"result": STOPPED}]))
        if words[0] == "follow":
            rest = LOG.rpartition(b'{"t": 3.3')[0][int(words[2]) :]
            return channel(rest + encode([{"t": 9.0, "result": STOPPED}]))
        os.kill(os.getpid(), signal.SIGINT)
        return channel(message, None)

    return answer


def test_an_interrupt_before_the_start_stops_the_job(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeHead(interrupting(STARTED))
    assert attend(app, fake.make(), ORDER, plain=False) == 130
    assert [words[0] for words in fake.asked] == ["submit", "stop"]
    assert "did not start" in capsys.readouterr().err


class Interrupted(Channel):
    """A channel whose second read sends SIGINT to this process."""

    def recv(self, size: int) -> bytes:
        if (piece := super().recv(size)) == b"SIGINT":
            os.kill(os.getpid(), signal.SIGINT)
            raise TimeoutError
        return piece


def interrupted_head(first: bytes) -> FakeHead:
    after = interrupting(b"")
    pieces = (first, b"SIGINT", b"", None, None)
    return FakeHead(lambda words: Interrupted(deque(pieces)) if words[0] == "submit" else after(words))


def test_an_interrupt_takes_a_job_out_of_the_queue(app: App) -> None:
    fake = interrupted_head(b'{"job":"j1","state":"queued"}\n' + encode([{"t": 1.0, "state": "queued"}]))
    with pytest.raises(JobError, match="was stopped") as caught:
        attend(app, fake.make(), ORDER, plain=False)
    assert caught.value.exit_code == 130
    assert [words[0] for words in fake.asked] == ["submit", "stop"]


@pytest.mark.parametrize(
    ("choice", "asked", "stopped"),
    [
        ("stop", ["submit", "stop", "follow"], True),
        ("leave", ["submit"], False),
        ("continue", ["submit", "follow"], True),
    ],
)
def test_at_a_terminal_the_user_chooses(
    app: App,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    choice: str,
    asked: list[str],
    stopped: bool,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{choice}\n"))
    monkeypatch.setattr(App, "is_interactive", lambda _: True)
    fake = interrupted_head(STARTED + LOG[:300])
    with pytest.raises(JobError, match="was stopped") if stopped else nullcontext():
        assert attend(app, fake.make(), ORDER, plain=False) == 130
    assert [words[0] for words in fake.asked] == asked
    lines = [render_line(event) for event in map(EventReader().read, LOG.splitlines()) if event is not None]
    assert (capsys.readouterr().out.splitlines() == [line for line in lines if line is not None]) is stopped  # once


def test_a_job_whose_head_is_lost_ends_with_it(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app.config_path.write_text('name = "demo"\n')
    monkeypatch.setattr(attach, "end_from_here", lambda *_: {})
    fake = FakeHead(lambda _: channel(STARTED + LOG[:300], exit_code=BROKEN))
    head = fake.make()
    head.open("warm")
    fake.refuse = [HeadGoneError("node-0 (i-0) is terminated")]
    with pytest.raises(JobError, match=r"ended with its head: node-0 \(i-0\) is terminated; no process") as caught:
        attend(app, head, ORDER, plain=False)
    assert caught.value.exit_code == 1


EPOCH = encode([{"t": 3.4, "p": 1, "line": "Epoch[0] Batch [0-20]\tSpeed: 2000.0 samples/sec"}])
SHOWN = LOG.replace(b'{"t": 3.3', EPOCH + b'{"t": 3.3')
FAILED = encode([{"t": 9.0, "result": {"state": "failed", "exit_code": 1, "error": "exit code 1", "culprit": 1}}])


@pytest.mark.parametrize(
    ("log", "is_terminal", "shows"),
    [
        (SHOWN, True, "its curves"),
        (SHOWN, False, None),  # not in a log file, nor in the output of a script
        (FAILED, True, "its first error"),
    ],
)
def test_the_end_of_a_job_names_its_report(
    app: App,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    log: bytes,
    is_terminal: bool,
    shows: str | None,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    fake = FakeHead(lambda _: channel(STARTED + log))
    with nullcontext() if log is SHOWN else pytest.raises(JobError):
        assert attend(app, fake.make(), ORDER, plain=True) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("cluster report")]
    assert said == ([] if shows is None else [f"cluster report j1 shows {shows}"])


@pytest.mark.parametrize(
    ("is_same", "is_new", "asked"), [(True, False, 1), (True, True, 2), (False, False, 2)], ids=str
)
def test_a_submission_begins_before_its_order(*, is_same: bool, is_new: bool, asked: int) -> None:
    """Not on another node than the head, nor on a head where set-up commands have run since; then it ends."""
    fake, other = FakeHead(lambda _: channel(STARTED)), FakeHead(lambda _: channel(STARTED))
    submission = Submission(follow=True)
    submission.begin(cast("Any", fake if is_same else other))
    head = replace(node(0), connection=cast("Any", fake), is_new=is_new)
    program = submission.take(fake.make(), head)
    assert submit(fake.make(), ORDER, follow=True, program=program) == ("starting", program)
    assert [*fake.asked, *other.asked] == [["submit", "--follow"]] * asked
    early = (fake if is_same else other).channels[0]
    assert early.closed == (asked == 2)
