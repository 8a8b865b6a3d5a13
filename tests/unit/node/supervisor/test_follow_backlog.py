"""jobs.py follow: slow readers, long lines, and half a line that is removed after a full disk."""

import json
import time
from pathlib import Path
from typing import Any

from job_host import LocalHead, job_host, job_id
from waits import until

__all__ = ["job_host"]

LINES = 4000
PROGRAM = f"for number in $(seq {LINES}); do printf '%s %01000d\\n' $number 0; done"


def test_a_reader_that_is_slow_gets_every_line(job_host: LocalHead) -> None:
    order = job_host.order("/bin/bash", "-c", PROGRAM, workers=1, servers=0)
    assert job_host.run(order)[0]["state"] == "done"
    with job_host.asking("follow", job_id(1), "0") as follower:
        time.sleep(0.5)  # by then, the program has read as much of the log as it has room for
        messages = [json.loads(line) for line in follower.stdout]
    lines = [message["line"].split()[0] for message in messages if "line" in message]
    assert lines == [str(number) for number in range(1, LINES + 1)]
    assert messages[-1]["result"]["state"] == "done"


def test_a_line_may_be_longer_than_one_read(job_host: LocalHead) -> None:
    program = "head -c 60000 /dev/zero | tr '\\0' '\\1'; echo; echo end"  # JSON writes each byte as \\u0001
    result, log = job_host.run(job_host.order("/bin/bash", "-c", program, workers=1, servers=0))
    assert result["state"] == "done"
    assert [message["line"] for message in log if "line" in message] == ["\x01" * 60000, "end"]


def test_the_last_lines_are_found_on_the_head(job_host: LocalHead) -> None:
    job_host.run(job_host.order("/bin/bash", "-c", "echo one; echo two; echo three", workers=1, servers=0))
    start, *log = job_host.ask("follow", job_id(1), "0", "--start", '{"tail": 2, "ranks": [0]}')
    assert [(one["role"], one["rank"], one["host"]) for one in start["processes"]] == [("worker", 0, "node-0")]
    assert [message["line"] for message in log if "line" in message] == ["two", "three"]
    assert log[-1]["result"]["state"] == "done"


def read_bytes(pid: int) -> int:
    """The number of bytes that a process has read so far."""
    (line,) = [line for line in Path(f"/proc/{pid}/io").read_text().splitlines() if line.startswith("rchar: ")]
    return int(line.removeprefix("rchar: "))


def test_half_a_line_that_is_removed_is_forgotten(job_host: LocalHead) -> None:
    program = "echo begun; until [ -e ~/go ]; do sleep 0.05; done; echo end"
    order = job_host.order("/bin/bash", "-c", program, workers=1, servers=0)
    assert job_host.ask("submit", order=order)[0]["state"] == "starting"
    job_host.wait_for('"line": "begun"')  # the log does not change after this line
    with job_host.asking("follow", order["job"], "0") as follower:
        messages: list[dict[str, Any]] = []
        while not any("line" in message for message in messages):
            messages.append(json.loads(follower.stdout.readline()))
        half = b'{"t": 1.0, "p": 0, "line": "as far as there was ro'
        before = read_bytes(follower.pid)
        with (job_host.folder() / "events").open("ab") as log:
            size = log.tell()
            log.write(half)
            log.flush()
            until(lambda: read_bytes(follower.pid) >= before + len(half))
            log.truncate(size)
        (job_host.home / "go").touch()
        messages += [json.loads(line) for line in follower.stdout]
    assert [message["line"] for message in messages if "line" in message] == ["begun", "end"]
    assert messages[-1]["result"]["state"] == "done"
