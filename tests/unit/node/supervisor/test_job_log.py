"""The log of a job is bounded, but has the end of every process's output."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from node import job_folder
from node.supervisor import job_log
from s3_server import S3Server, server, shared_server

__all__ = ["server", "shared_server"]

LIMIT, BURST, PER_S = 2000, 400, 10


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    for name, value in (("LIMIT_BYTES", LIMIT), ("BURST_BYTES", BURST), ("MORE_BYTES_PER_S", PER_S)):
        monkeypatch.setattr(job_log, name, value)
    return at


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = Path(job_folder.path("j"))
    folder.mkdir(parents=True)
    return folder / "events"


def read_lines(events: Path, process: int = 0) -> list[str]:
    found: list[dict[str, Any]] = [json.loads(line) for line in events.read_text().splitlines()]
    return [event["line"] for event in found if event.get("p") == process and "line" in event]


def test_a_process_that_prints_too_much(now: list[float], events: Path) -> None:
    log = job_log.Log("j")
    for number in range(1000):
        log.put_line(0, f"{number:010d}")
    log.put_line(1, "another process")
    log.write()
    begun = read_lines(events)
    assert begun == [f"{number:010d}" for number in range(len(begun))]
    assert read_lines(events, 1) == ["another process"]
    size = events.stat().st_size
    assert LIMIT / 2 < size < 2 * LIMIT

    now[0] += BURST / PER_S  # while it runs, more lines follow
    for number in range(1000):
        log.put_line(0, f"{number:010d}")
    log.write()
    gap, *more = read_lines(events)[len(begun) :]
    assert gap.startswith(f"... {1000 - len(begun)} lines left out: this process has filled its ")
    assert more == [f"{number:010d}" for number in range(len(more))]
    assert len(more) > 1
    assert events.stat().st_size < size + 2 * BURST

    log.end_output(0, ["before", "Traceback"])
    log.write()
    gap, *last = read_lines(events)[len(begun) + 1 + len(more) :]
    assert gap.startswith(f"... {1000 - len(more) - 2} lines left out")
    assert last == ["before", "Traceback"]


@pytest.mark.parametrize("end", [b"", b'{"t": 2.0, "p": 0, "li', b"damaged\n"])
def test_the_log_of_earlier_attempts_is_restored_without_an_incomplete_line(
    events: Path, server: S3Server, end: bytes
) -> None:
    whole = b'{"t": 1.0, "p": 4, "role": "worker", "host": "node-0"}\n'
    server.put("results", {"j/events": whole + end})
    assert job_log.restore("j", "s3://results/j/", os.environ) == 5
    assert events.read_bytes() == whole + end * end.endswith(b"\n")
    assert job_log.repair("j") is None


def test_a_lost_head_may_have_copied_no_log(events: Path, server: S3Server) -> None:
    server.put("results", {"j/record.json": b"{}"})
    assert job_log.restore("j", "s3://results/j/", os.environ) == 0
    assert events.read_bytes() == b""
