"""Functions that commands share: one set-up of the nodes at a time, and no traceback for errors of this machine."""

import fcntl
import os
import subprocess
import threading
from pathlib import Path

from foundation.files import one_at_a_time
from foundation.progress import Event
from project import CLUSTER


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


def test_a_full_disk_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text('name = "demo"\n')
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [CLUSTER, "sandbox", "status"],
            cwd=tmp_path,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: No space left on device\n  try: free some space; ")
