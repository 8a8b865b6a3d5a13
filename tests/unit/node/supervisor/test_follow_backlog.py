"""jobs.py follow: slow readers, long lines, and half a line that is removed after a full disk."""

import json
import time

from job_host import LocalHead, job_host, job_id

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


def test_the_last_lines_are_found_on_the_head(job_host: LocalHead) -> None:
    job_host.run(job_host.order("/bin/bash", "-c", "echo one; echo two; echo three", workers=1, servers=0))
    start, *log = job_host.ask("follow", job_id(1), "0", "--start", '{"tail": 2, "ranks": [0]}')
    assert [(one["role"], one["rank"], one["host"]) for one in start["processes"]] == [("worker", 0, "node-0")]
    assert [message["line"] for message in log if "line" in message] == ["two", "three"]
    assert log[-1]["result"]["state"] == "done"
