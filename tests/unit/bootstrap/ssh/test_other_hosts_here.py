"""The user's own hosts, on this machine: their addresses, the stored data, and the scripts for them."""

import os
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest
from msgspec.structs import replace

from bootstrap.ssh.host import Host
from bootstrap.ssh.keys import authorized_line, render_let_in
from bootstrap.ssh.other_hosts import (
    Memory,
    Remembered,
    check_addresses,
    parse_addresses,
    remember,
    render_release,
)
from foundation.errors import ConfigError
from foundation.remote_command import RemoteCommand
from node_facts import LAB as OWN_HOST

LAB = replace(OWN_HOST, name="lab:2222", instance_id="lab:2222", spec="alice@lab:2222")
MARK = "cluster-internal-demo-0011aabb"
LINE = authorized_line("ssh-ed25519 AAAA x", head_ip="10.0.0.4,198.18.0.0", mark=MARK)
MINE = "ssh-ed25519 MINE me@home"


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([replace(LAB, private_ip="127.0.0.1")], "which no node can reach"),
        ([LAB, replace(LAB, spec="lab")], '"lab" and alice@lab:2222 are the same host'),
        ([LAB, replace(LAB, spec="b", private_ip="10.9.0.2")], None),
    ],
)
def test_addresses_are_unique_and_reachable(others: list[Host], message: str | None) -> None:
    with nullcontext() if message is None else pytest.raises(ConfigError, match=message):
        check_addresses(others, key="[hosts] names")


def test_the_addresses_of_a_head() -> None:
    assert parse_addresses("10.0.0.7 172.17.0.1 fe80::1%eth0 x\n") == ("10.0.0.7", "172.17.0.1")


# -- stored hosts ----------------------------------------------------------------------------------------------------


def test_hosts_are_remembered_and_forgotten(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "demo" / "other_hosts.json", cluster="demo")
    assert memory.read().hosts == ()
    memory.keep([remember(LAB, key=("ssh-ed25519", "K"))])
    mark = memory.read().mark
    assert mark.startswith("cluster-internal-demo-")
    memory.keep([remember(LAB, jobs=("j1",)), remember(replace(LAB, spec="b"), jobs=("j1",))])
    memory.keep([remember(LAB, jobs=("j2",))])
    first, second = memory.read().hosts
    assert first == Remembered(
        spec=LAB.spec, address="10.9.0.1", port=2222, key=("ssh-ed25519", "K"), jobs=("j1", "j2")
    )
    assert second.key is None
    assert memory.read().mark == mark
    assert memory.path.stat().st_mode & 0o077 == 0
    memory.forget([LAB.spec])
    assert [entry.spec for entry in memory.read().hosts] == ["b"]
    memory.forget(["b"])
    assert not memory.path.parent.exists()


# -- scripts on the host ---------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".cluster" / "env").mkdir(parents=True)
    (tmp_path / ".cluster" / "env").chmod(0o500)
    return tmp_path


def run(script: RemoteCommand, home: Path) -> str:
    """Runs a script with this home folder; returns its output."""
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    done = subprocess.run(script.here(), env=env, check=True, capture_output=True, text=True, timeout=20)
    assert done.stderr == ""
    return done.stdout


def write_keys(home: Path, text: str) -> Path:
    keys = home / ".ssh" / "authorized_keys"
    keys.parent.mkdir(exist_ok=True)
    keys.write_text(text)
    return keys


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, ""),
        (f"{MINE}\n", f"{MINE}\n"),
        (MINE, f"{MINE}\n"),  # without a newline at the end
        (f"restrict ssh-ed25519 OLD {MARK}\n{MINE}\n", f"{MINE}\n"),  # the key of an earlier head
    ],
)
def test_the_head_is_authorized_once_and_other_lines_stay(home: Path, before: str | None, after: str) -> None:
    if before is not None:
        write_keys(home, before)
    assert run(render_let_in(LINE, mark=MARK), home) == "changed\n"
    keys = home / ".ssh" / "authorized_keys"
    assert keys.read_text() == f"{after}{LINE}\n"
    assert keys.stat().st_mode & 0o077 == 0
    assert run(render_let_in(LINE, mark=MARK), home) == "unchanged\n"
    assert run(render_release(MARK), home) == "removed\n"
    assert keys.read_text() == after
    assert not (home / ".cluster").exists()
    assert run(render_release(MARK), home) == "removed\n"


@pytest.mark.parametrize("script", [render_let_in(f"{LINE}x", mark=MARK), render_release(MARK)])
def test_a_full_disk_keeps_authorized_keys(home: Path, script: RemoteCommand) -> None:
    keys = write_keys(home, f"{MINE}\n{LINE}\n")
    with pytest.raises(subprocess.CalledProcessError):
        run(RemoteCommand("trap '' XFSZ; ulimit -f 0; ", script), home)
    assert keys.read_text() == f"{MINE}\n{LINE}\n"
    assert [*keys.parent.iterdir()] == [keys]


def test_files_that_cannot_be_removed_leave_no_key(home: Path) -> None:
    keys = write_keys(home, f"{MINE}\n{LINE}\n")
    with pytest.raises(subprocess.CalledProcessError):
        run(RemoteCommand("rm() { false; }; sudo() { false; }; ", render_release(MARK)), home)
    assert keys.read_text() == f"{MINE}\n"


def test_release_of_a_host_where_logins_need_no_file(home: Path) -> None:
    """Such as one whose keys are in a directory service, if the head was never let in."""
    assert run(render_release(MARK), home) == "removed\n"
    assert not (home / ".cluster").exists()


def test_a_linked_authorized_keys_stays_a_link(home: Path) -> None:
    keys = write_keys(home, "")
    keys.rename(home / "keys")
    keys.symlink_to(home / "keys")
    run(render_let_in(LINE, mark=MARK), home)
    assert keys.is_symlink()
    assert (home / "keys").read_text() == f"{LINE}\n"


@pytest.mark.parametrize("other", ["cluster-internal-demo-99999999", "cluster-internal"])
def test_release_keeps_another_clusters_line_and_files(home: Path, other: str) -> None:
    theirs = f"restrict ssh-ed25519 B {other}"
    keys = write_keys(home, f"{theirs}\n")
    run(render_let_in(LINE, mark=MARK), home)
    assert keys.read_text() == f"{theirs}\n{LINE}\n"
    assert run(render_release(MARK), home) == "kept\n"
    assert keys.read_text() == f"{theirs}\n"
    assert (home / ".cluster" / "env").is_dir()


# -- a job on such hosts ---------------------------------------------------------------------------------------------
