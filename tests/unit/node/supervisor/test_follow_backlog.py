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
