"""One set-up of the nodes at a time."""

import fcntl
import os
import threading
from pathlib import Path

from foundation.files import one_at_a_time
from foundation.progress import Event


def test_a_second_set_up_waits_for_the_first_and_reports_it(tmp_path: Path) -> None:
    waiting = threading.Event()
    entered = threading.Event()
    said: list[Event] = []

    def report(event: Event) -> None:
        said.append(event)
        waiting.set()

    def set_up() -> None:
        with one_at_a_time(tmp_path, does="is setting up the nodes", report=report):
            entered.set()

    # The lock belongs to the open file, so a thread can stand in for another command.
    first = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    second = threading.Thread(target=set_up)
    second.start()
    assert waiting.wait(timeout=10)
    assert not entered.is_set()
    os.close(first)
    second.join(timeout=10)
    assert entered.is_set()
    assert [event.what for event in said] == ["waiting for another command that is setting up the nodes"]
