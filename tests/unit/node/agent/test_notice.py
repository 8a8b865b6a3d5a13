"""Spot notices on a node, without a job."""

import subprocess
import sys
from pathlib import Path

import pytest

from node.agent.notice import NoticeFile, parse_notice, parse_numbers
from node.setup import process_tree
from node.wire import Notice
from waits import until

CATCHES = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"told\\n"))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ('{"action": "terminate", "time": "2017-09-18T08:22:00Z"}', Notice(action="terminate", at=1505722920.0)),
        ('{"action": "stop", "time": "soon"}', Notice(action="stop")),
        ('{"action": "hibernate"}', Notice(action="hibernate")),
        ("[]", None),
    ],
)
def test_answers_of_the_metadata_service(text: str, notice: Notice | None) -> None:
    assert parse_notice(text) == notice


@pytest.mark.parametrize(
    ("data", "numbers"),
    [
        (b'{"url": "s3://b/m", "epoch": 2, "batch": 17}', {"epoch": 2, "batch": 17}),
        (b'{"epoch": -1, "batch": true, "x": 1e9, "y": 99999999999}', {}),
        (b'{"epoch": 2, "ba', {}),
        (b"[" * 4000, {}),
    ],
)
def test_files_of_programs_are_read_with_care(data: bytes, numbers: dict[str, int]) -> None:
    assert parse_numbers(data) == numbers


def test_only_programs_with_a_handler_get_the_signal(tmp_path: Path) -> None:
    """SIGUSR1 would end the other programs."""
    words = [sys.executable, "-c", CATCHES]
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as catches,
        subprocess.Popen(["sleep", "100"]) as sleeps,
    ):
        try:
            assert catches.stdout.readline() == b"ready\n"
            until(lambda: "sleep" in Path(f"/proc/{sleeps.pid}/comm").read_text())
            found = [(pid, process_tree.start_time(pid), "") for pid in (catches.pid, sleeps.pid)]
            NoticeFile(str(tmp_path / "notice" / "attempt-1")).announce([(a, b or 0, c) for a, b, c in found])
            assert catches.stdout.readline() == b"told\n"
            assert (tmp_path / "notice" / "attempt-1").exists()
            assert sleeps.poll() is None
        finally:
            catches.kill()
            sleeps.kill()


def test_boots_differ_in_any_part_that_both_know() -> None:
    assert process_tree.boot() == process_tree.boot()
    others = {"a:1": False, "a:2": True, "b:1": True, "a:": False, ":1": False}
    assert {other: process_tree.is_other_boot("a:1", other) for other in others} == others
