"""One set-up of the nodes at a time, and what is said of the files that it sends."""

import threading
from pathlib import Path

import pytest

from bootstrap.transfer.sync import SyncFiles
from cluster.session import render_ignored
from foundation.file_lock import locked
from foundation.files import one_at_a_time
from foundation.progress import Event


def test_a_second_set_up_waits_for_the_first_and_reports_it(tmp_path: Path) -> None:
    messages: list[Event] = []
    waiting, entered = threading.Event(), threading.Event()

    def report(event: Event) -> None:
        messages.append(event)
        waiting.set()

    def set_up() -> None:
        with one_at_a_time(tmp_path, does="is setting up the nodes", report=report):
            entered.set()

    second = threading.Thread(target=set_up)
    with locked(tmp_path):  # the lock belongs to the open file, so a thread can stand in for another command
        second.start()
        assert waiting.wait(timeout=10)
        assert not entered.is_set()
    second.join(timeout=10)
    assert entered.is_set()
    assert [event.what for event in messages] == ["waiting for another command that is setting up the nodes"]


@pytest.mark.parametrize(
    ("ignored", "shown"),
    [
        ([".venv/", "a/.cache"], ""),
        (["a.log", "data/", "results/20261130-095051-c0c8f1/"], "; left out by .gitignore: data/, a.log"),
        ([*"abcdefgh"], "; left out by .gitignore: a, b, c, d, e, f and 2 more"),
    ],
)
def test_what_gitignore_leaves_out(ignored: list[str], shown: str) -> None:
    assert render_ignored(SyncFiles(ignored=ignored)) == shown
