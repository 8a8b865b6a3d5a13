"""The log of a job is bounded, but has the end of every process's output."""

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from node import job_folder
from node.supervisor import job_log

LIMIT, KEPT, PER_S = 2000, 400, 10


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    for name, value in (("LIMIT_BYTES", LIMIT), ("KEPT_BYTES", KEPT), ("MORE_BYTES_PER_S", PER_S)):
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
        if not number % 100:
            log.write()
    log.put_line(1, "another process")
    log.write()
    begun = read_lines(events)
    assert begun[-2:] == [f"{len(begun) - 2:010d}", job_log.LIMIT_SAID]  # nothing is left out before the notice
    assert read_lines(events, 1) == ["another process"]
    size = events.stat().st_size
    assert size < 2 * LIMIT

    now[0] += KEPT / PER_S  # while it runs, its newest lines follow
    log.write()
    newest = read_lines(events)[len(begun) :]
    left_out = 1000 - (len(newest) - 1) - (len(begun) - 1)
    assert newest == [
        f"... {left_out} lines left out ...",
        *(f"{number:010d}" for number in range(1001 - len(newest), 1000)),
    ]
    assert len(newest) > 5
    assert events.stat().st_size < size + 2 * KEPT

    for number in range(1000):
        log.put_line(0, f"more {number}")
    log.put_line(0, "Traceback")
    log.end_output(0)
    log.put(p=0, exit=1)
    log.write()
    assert read_lines(events)[-3:] == ["more 998", "more 999", "Traceback"]
    assert json.loads(events.read_text().splitlines()[-1])["exit"] == 1
    assert job_log.LIMIT_SAID not in read_lines(events)[len(begun) :]


def test_a_lone_process_that_has_filled_its_part_is_still_written(now: list[float], events: Path) -> None:
    """Only new lines have the supervisor write."""
    log = job_log.Log("j", lambda: woken.append(None))
    woken: list[None] = []
    for number in range(1000):
        log.put_line(0, f"{number:010d}")
    log.write()
    woken.clear()
    now[0] += KEPT / PER_S
    log.put_line(0, "newest")
    assert len(woken) == 1
    log.write()
    assert read_lines(events)[-2:] == ["0000000999", "newest"]


def test_a_process_that_prints_slowly_loses_no_line(now: list[float], events: Path) -> None:
    log = job_log.Log("j")
    for number in range(100):
        log.put_line(0, f"{number:0100d}")
        log.write()
        now[0] += 130 / PER_S
    log.end_all_output()
    log.write()
    assert [line for line in read_lines(events) if line != job_log.LIMIT_SAID] == [f"{n:0100d}" for n in range(100)]


@pytest.mark.parametrize("end", [b"", b'{"t": 2.0, "p": 0, "li', b"damaged\n"])
def test_the_log_of_earlier_attempts_is_restored_without_an_incomplete_line(events: Path, end: bytes) -> None:
    whole = b'{"t": 1.0, "state": "starting"}\n'
    job_log.restore("j", io.BytesIO(whole + end))
    assert events.read_bytes() == whole + end * end.endswith(b"\n")
    assert job_log.repair("j") is None
