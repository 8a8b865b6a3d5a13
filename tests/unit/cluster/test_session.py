"""Functions that commands share: one set-up of the nodes at a time, and no traceback for errors of this machine."""

import fcntl
import os
import subprocess
import threading
from pathlib import Path

from bootstrap.transfer.sync import Found, find_below
from cluster.session import render_files
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


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text('name = "demo"\n')
    done = subprocess.run(
        [CLUSTER, "-c", "cluster.toml/x/cluster.toml", "status"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "cluster.toml/x/cluster.toml: cannot be read: " in done.stderr


def test_the_files_of_a_job_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("12345")
    found = find_below(["."], named=(), project_dir=tmp_path, exclude=())
    assert render_files([tmp_path], found) == f"1 file (5 bytes) of {tmp_path}"
    assert render_files([Path("/p/a"), Path("/p/b")], Found()) == "no files of /p/a and /p/b"
