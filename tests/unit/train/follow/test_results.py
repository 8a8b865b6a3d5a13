"""The copy of a job's files from its nodes, and nodes that send something else."""

import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from bootstrap.ssh.connection import NodeConnection
from folders import write_files
from foundation.errors import ClusterError
from foundation.remote_command import RemoteCommand
from job_channels import Channel, channel
from local_nodes import LocalChannel, make_runtime
from node_facts import HOST
from train.follow.results import Copy, Listing, choose_files, copy_all, find_clash


class Running(LocalChannel):
    """The program on this machine; it ends with its channel."""

    def close(self) -> None:
        self.end()


class Connection:
    """A node whose program runs on this machine, or that sends these bytes."""

    host = HOST

    def __init__(self, home: Path | None = None, message: bytes = b"") -> None:
        self.home, self.message = home, message

    def open_channel(self, command: RemoteCommand) -> Running | Channel:
        if self.home is not None:
            return Running(command.text, {"HOME": str(self.home)})
        listed, end, rest = self.message.partition(b'{"end": true}\n')
        return channel(listed + end, rest)


def listing(home: Path | None = None, output: bytes = b"", words: Sequence[str] = ("j",)) -> Listing:
    if home is not None and not (home / ".cluster" / "runtime").exists():
        make_runtime(home / ".cluster" / "runtime" / "own")
    return Listing(cast("NodeConnection", Connection(home, output)), *words)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of a node with the output of a job; this machine's state is elsewhere."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    output = tmp_path / "home" / ".cluster" / "jobs" / "j" / "output"
    write_files(output, {"m": os.urandom(1_000_000), "deep/x\x1b[2J\n": b"abc", "empty": b""})
    (output / "link").symlink_to("m")
    return tmp_path / "home"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def copy(found: Listing, target: Path) -> Copy:
    names, left = choose_files(found.files, where=found.name)
    made = Copy(listing=found, names=names, left=left)
    try:
        copy_all([made], target, moved=lambda _: None)
    finally:
        found.close()
    return made


def test_files_arrive_once(home: Path, target: Path) -> None:
    done = copy(listing(home), target)
    assert done.left == ["node-1: output/link: a link"]
    assert (done.files, done.size_bytes, done.unchanged, done.failed, done.error) == (3, 1_000_003, 0, [], None)
    output = home / ".cluster" / "jobs" / "j" / "output"
    for name in ("m", "deep/x\x1b[2J\n", "empty"):
        assert (target / "output" / name).read_bytes() == (output / name).read_bytes()
    (output / "m").write_bytes(b"shorter")
    (target / "output" / "empty").unlink()
    again = copy(listing(home), target)
    assert (again.files, again.unchanged) == (2, 1)
    assert (target / "output" / "m").read_bytes() == b"shorter"


def test_a_file_that_cannot_be_read_or_written_is_named_and_the_others_arrive(home: Path, target: Path) -> None:
    found = listing(home)
    (home / ".cluster" / "jobs" / "j" / "output" / "empty").unlink()
    (target / "output" / "m").mkdir(parents=True)
    done = copy(found, target)
    assert done.files == 1
    assert sorted(done.failed) == [
        f"{target}/output/m: there is a folder of this name",
        f"node-1: output/empty: No such file or directory ({home}/.cluster/jobs/j/output/empty)",
    ]


def test_no_link_below_the_target_is_followed(home: Path, target: Path, tmp_path: Path) -> None:
    target.mkdir()
    (target / "output").symlink_to(tmp_path)
    with pytest.raises(ClusterError, match="is a symbolic link"):
        copy(listing(home), target)
    assert not (tmp_path / "m").exists()


def test_results_on_a_volume_without_the_jobs_log(tmp_path: Path, target: Path) -> None:
    folder = tmp_path / "shared"
    write_files(folder, dict.fromkeys(("record.json", "events", "samples", "model", "deep/events"), b""))
    found = listing(tmp_path, words=("j", str(folder)))
    assert sorted(file.name for file in found.files) == ["deep/events", "model"]
    found.close()


def lines(*files: Mapping[str, Any]) -> bytes:
    return b"".join(json.dumps(file).encode() + b"\n" for file in (*files, {"end": True}))


def file(name: str, size_bytes: int = 1) -> dict[str, Any]:
    return {"name": name, "size_bytes": size_bytes, "mtime_ns": 1}


def frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


ONE = frame(b"x") + frame(b"")


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/../../x", "", ".", "..", "a//b", "a/./b", "x\0", "a/", "\ud800"], ids=ascii
)
def test_no_name_leads_out_of_the_target(name: str, target: Path, tmp_path: Path, home: Path) -> None:
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    done = copy(listing(output=lines(file(name), file("good")) + ONE), target)
    assert len(done.left) == 1
    assert {path for path in tmp_path.rglob("*") if path.is_file()} - before == {target / "good"}


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (lines(file("a")) + frame(b"xx"), "more bytes than the file has"),
        (lines(file("a", 1 << 40)) + struct.pack(">i", 1 << 30), "a block of 1073741824 bytes"),
        (lines(file("a")) + frame(b"x")[:3], "the connection is lost"),
        (lines(file("a")) + struct.pack(">ii", -1, 4) + b"no\x1b!", "no\x1b!"),
    ],
)
def test_invalid_content(message: bytes, error: str, target: Path, home: Path) -> None:
    done = copy(listing(output=message), target)
    assert error in (done.error.message if done.error is not None else done.failed[0])
    assert [path for path in target.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b'{"name": "a"}\n', "a list without an end"),
        (lines({"name": "a", "size_bytes": -1}), "invalid message"),
        (lines(*map(file, "abc")), "more than 2 files"),
    ],
)
def test_invalid_lists(monkeypatch: pytest.MonkeyPatch, message: bytes, error: str) -> None:
    monkeypatch.setattr("train.follow.results.MOST_FILES", 2)
    with pytest.raises(ClusterError, match=error):
        listing(output=message)


def test_what_a_login_shell_prints_is_skipped_and_a_node_without_our_programs_has_no_files() -> None:
    assert [one.name for one in listing(output=b"welcome\n" + lines(file("a"))).files] == ["a"]
    assert listing(output=b"welcome\n").files == ()


@pytest.mark.parametrize(
    ("places", "clash"),
    [
        ({}, None),
        ({"node-0": ["a", "b/c"], "node-1": ["b/d", "e"]}, None),
        ({"node-0": ["a"], "node-1": ["b", "a"]}, ("node-0", "node-1", "a")),
        ({"node-0": ["a/b"], "node-1": ["a"]}, ("node-1", "node-0", "a")),
    ],
)
def test_files_of_several_nodes_are_merged_unless_their_names_clash(
    places: Mapping[str, Sequence[str]], clash: tuple[str, str, str] | None
) -> None:
    assert find_clash(places) == clash
