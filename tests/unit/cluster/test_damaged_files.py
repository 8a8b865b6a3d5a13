"""Damaged files of ours on the user's machine: the program works, or names the file and the next command to run."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from bootstrap.ssh.keys import HostKeyPins, load_private_key
from bootstrap.ssh.other_hosts import Memory
from cluster.completion import load_shape
from foundation.errors import ClusterError
from foundation.progress import silent
from foundation.user_folders import cache_folder, state_folder
from provision.cost import storage
from provision.cost.ledger import Ledger
from provision.files import ClusterFiles
from train.s3.connection import Connection
from train.s3.run_journal import Run, abort_unfinished, noted

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIHWIDDpwL4tN7CkEyA6KkkIiKkDkGIYGkKf5YrJSJm+A"


FILES: dict[str, Callable[[ClusterFiles], Path]] = {
    "key": lambda files: files.private_key,
    "known hosts": lambda files: files.known_hosts,
    "journal": lambda files: files.journal,
    "addresses": lambda files: files.addresses_file,
    "continued jobs": lambda files: files.continued_jobs,
    "lock": lambda files: files.lock_file,
    "watched": lambda files: files.watched,
    "other hosts": lambda files: files.other_hosts,
    "costs": lambda files: storage.ledger_path(files.root),
    "transfers": lambda _: state_folder() / "transfers" / "one.json",
    "completion": lambda _: cache_folder() / "completion.json",
}


def use_all(files: ClusterFiles) -> None:
    files.known_instances()
    files.make_key()
    load_private_key(files.private_key)
    HostKeyPins(files.known_hosts).pin("i-1", "ssh-ed25519", KEY)
    files.note_instances(["i-1"])
    files.begin_launch("digest", indices=(1,), now=1.0)
    files.keep_addresses({"i-1": "198.18.0.2"})
    files.find_continued_jobs()
    files.note_continued_jobs(["one"])
    with files.locked():
        files.find_command_at_work()
    files.note_watched(is_watched=True)
    files.note_watched(is_watched=False)
    Memory(files.other_hosts, cluster="demo").keep_nodes(["me@gpu1"])
    storage.update(files.root, lambda _: Ledger(downs=(1.0,)))
    abort_unfinished(cast("Connection", SimpleNamespace(endpoint="AWS")), silent)
    with noted(Run(endpoint="AWS", bucket="b", keys=("other",))):
        pass
    assert load_shape("cluster.commands.status:status").params


def error_of(files: ClusterFiles) -> ClusterError | None:
    try:
        use_all(files)
    except ClusterError as error:
        return error
    return None


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": cut,
    "garbage": lambda path: path.write_bytes(b"\xff\x00\x9f \xff\n" * 999),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("find", FILES.values(), ids=FILES)
def test_a_damaged_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    find: Callable[[ClusterFiles], Path],
    damage: Callable[[Path], object],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = ClusterFiles(state_folder() / "aws" / "us-east-1" / "demo")
    files.root.mkdir(parents=True)
    use_all(files)
    path = find(files)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    damage(path)
    if (error := error_of(files)) is None:
        assert error_of(files) is None
    else:
        assert str(path) in error.message
        assert str(path) in (error.hint or "")
    files.forget()  # as `down` does
