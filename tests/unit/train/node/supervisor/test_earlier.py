"""The log of a job that starts again on another head."""

from pathlib import Path

import pytest

from train.node import job_folder
from train.node.supervisor.attempts import earlier

LOG = b"""\
{"t": 1.0, "state": "starting"}
{"t": 1.1, "p": 0, "role": "launcher", "host": "node-0"}
{"t": 1.2, "p": 1, "role": "worker", "host": "node-0"}
{"t": 1.3, "p": 1, "line": "one"}
{"t": 1.4, "p": 2, "role": "worker", "host": "node-1"}
{"t": 1.5, "p": 1, "rank": 0}
{"t": 1.6, "p": 2, "line": "no rank yet"}
{"t": 1.7, "p": 0, "line": "launched"}
damaged
{"t": 1.8, "p": 1, "line": "two"}
{"t": 2.0, "say": "starting attempt 2"}
{"t": 2.1, "p": 3, "role": "worker", "host": "node-1", "rank": 0}
{"t": 2.2, "p": 3, "line": "three"}
{"t": 2.3, "p": 3, "li"""


def test_each_process_has_its_file_again() -> None:
    assert earlier.find_files(LOG) == {
        "launcher": b"launched\n",
        "worker-0": b"one\ntwo\nthree\n",
        "worker@node-1": b"no rank yet\n",
    }


def test_an_incomplete_line_is_not_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = Path(job_folder.path("job"))
    folder.mkdir(parents=True)

    earlier.restore("job", LOG)

    assert (folder / "events").read_bytes() == LOG[: LOG.rindex(b"\n") + 1]
    assert (folder / "ranks" / "worker-0.log").read_text() == "one\ntwo\nthree\n"


def test_launchers_on_several_hosts_have_a_file_each() -> None:
    log = b"".join(
        b'{"t": 1.0, "p": %d, "role": "launcher", "host": "node-%d"}\n{"t": 1.0, "p": %d, "line": "on %d"}\n'
        % (number, number, number, number)
        for number in (0, 1)
    )
    assert earlier.find_files(log) == {"launcher-node-0": b"on 0\n", "launcher-node-1": b"on 1\n"}
