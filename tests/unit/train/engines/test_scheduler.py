"""The common parts of all batch schedulers: the script that holds the nodes, and durations."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from train.engines.scheduler import parse_clock, render_clock, render_holder
from train.engines.schedulers import SCHEDULERS
from waits import until

JOB = "20260101-000000-abcdef"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("UNLIMITED", None),
        ("INFINITY", None),
        ("", None),
        ("90", 90),
        ("10:00", 600),
        ("00:01:30", 90),
        ("26:0:0", 93600),
        ("2-00:00:00", 172800),
    ],
)
def test_a_schedulers_length_of_time(text: str, seconds: int | None) -> None:
    assert parse_clock(text) == seconds


def test_what_is_no_length_of_time() -> None:
    with pytest.raises(ValueError, match="'soon' is not a length of time"):
        parse_clock("soon")


def test_a_length_of_time_for_a_scheduler() -> None:
    assert [render_clock(seconds) for seconds in (60, 3599, 100 * 3600)] == ["0:01:00", "0:59:59", "100:00:00"]


def test_the_script_holds_nodes_until_the_heartbeat_stops(tmp_path: Path) -> None:
    beat = tmp_path / ".cluster" / "jobs" / JOB / "heartbeat"
    script = "\n".join(render_holder(JOB)).replace("sleep 5", "sleep 0.2")
    env = {**os.environ, "HOME": str(tmp_path)}
    holder = subprocess.Popen(["/bin/sh", "-c", script], env=env, stderr=subprocess.PIPE)
    try:
        until(beat.parent.exists)
        give_up_at = time.monotonic() + 4  # without a heartbeat, the script would end after 2.4 s
        while time.monotonic() < give_up_at:
            beat.write_text(f"{time.monotonic()}\n")
            time.sleep(0.05)
        assert holder.poll() is None
        assert holder.wait(60) == 1
        assert holder.stderr is not None
        assert holder.stderr.read() == f"no heartbeat of job {JOB} for 60 s\n".encode()
    finally:
        holder.kill()
        holder.communicate()


def test_each_scheduler_is_in_the_table_by_its_launcher() -> None:
    assert {name: one.name for name, one in SCHEDULERS.items()} == {name: name for name in ("slurm", "sge", "pbs")}
