"""What users' programs learn about a notice, and what the supervisor learns from the programs."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mxnet_cluster import interruption
from mxnet_cluster.interruption import Interruption
from node.agent.notice import PROGRESS, SAVED, NoticeFile


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def notice(tmp_path: Path) -> Path:
    return tmp_path / "notice" / "attempt-1"


def open_with(notice: Path) -> Interruption:
    return Interruption({"CLUSTER_NOTICE_FILE": str(notice)})


def test_outside_a_job_there_is_no_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLUSTER_NOTICE_FILE", raising=False)
    found = Interruption()
    assert not found.has_notice()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    found.note_progress(1, 2, 3)
    found.note_saved("model", 1, 2)
    found.wait_for_end()  # returns at once


def test_a_notice_ends_with_a_checkpoint(notice: Path) -> None:
    """A job with on_node_loss = "fail" continues after it; another notice may come by the signal."""
    found = open_with(notice)
    assert not found.has_notice()
    notice.parent.mkdir()
    notice.touch()
    assert found.has_notice()
    os.kill(os.getpid(), signal.SIGUSR1)
    found.note_saved("model", 1, 2)
    assert not found.has_notice()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert found.has_notice()


def test_progress_that_cannot_be_written_is_lost(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    open_with(tmp_path / "file" / "attempt-1").note_progress(0, 1, 30)


def test_a_program_keeps_its_own_handler(notice: Path) -> None:
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    found = open_with(notice)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert seen == [1]
    assert not found.has_notice()


def test_the_supervisor_reads_what_is_noted(notice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    found, reader = open_with(notice), NoticeFile(str(notice))
    found.note_progress(2, 7, 10)
    assert reader.read_new(PROGRESS) == {"epoch": 2, "batch": 7, "batches": 10}
    found.note_progress(2, 8, 10)  # too soon after the last one
    assert reader.read_new(PROGRESS) is None
    found.note_progress(2, 9, 10, at_once=True)
    assert reader.read_new(PROGRESS) == {"epoch": 2, "batch": 9, "batches": 10}
    clock[0] += interruption.PROGRESS_EVERY_S
    found.note_progress(3, 0, 10)
    assert reader.read_new(PROGRESS) == {"epoch": 3, "batch": 0, "batches": 10}
    assert reader.read_new(SAVED) is None
    found.note_saved("s3://bucket/model", 3, 0)
    assert reader.read_new(SAVED) == {"epoch": 3, "batch": 0}
    assert json.loads(Path(f"{notice}.saved").read_text())["url"] == "s3://bucket/model"
    assert sorted(path.name for path in notice.parent.iterdir()) == ["attempt-1.progress", "attempt-1.saved"]
