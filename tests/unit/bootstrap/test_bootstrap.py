"""Reaching nodes: host keys, connections, what is said when they fail."""

import hashlib
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from bootstrap.ssh.connections import on_all
from bootstrap.ssh.host import Host
from bootstrap.ssh.keys import HostKeyPins, authorize_script, authorized_line, known_hosts_text
from foundation.errors import ClusterError, ConnectError

HOST = Host(name="node-1", instance_id="i-1", address="198.18.0.2", private_ip="10.0.0.5", user="ubuntu", is_head=False)


def test_pins_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ClusterError, match="known_hosts:1: not a pinned host key"):
        HostKeyPins(tmp_path / "known_hosts").find("i-1")


def test_host_keys_are_pinned_and_never_replaced(tmp_path: Path) -> None:
    pins = HostKeyPins(tmp_path / "cluster" / "known_hosts")
    assert pins.find("i-1") is None
    threads = [threading.Thread(target=pins.pin, args=(f"i-{n}", "ssh-ed25519", f"AAA{n}")) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [pins.find(f"i-{n}") for n in range(20)] == [("ssh-ed25519", f"AAA{n}") for n in range(20)]
    with pytest.raises(ClusterError, match="pinned to another host key"):
        pins.pin("i-1", "ssh-ed25519", "BBBB")
    pins.keep_only(["i-3"])
    assert pins.path.read_text() == "i-3 ssh-ed25519 AAA3\n"
    assert pins.path.stat().st_mode & 0o077 == 0
    pins.path.write_text("half line\n")
    with pytest.raises(ClusterError, match="not a pinned host key"):
        pins.find("i-3")


def test_the_clusters_key_is_accepted_from_the_head_for_commands_alone() -> None:
    line = authorized_line("ssh-ed25519 AAAA cluster-internal demo", head_ip="10.0.0.4")
    assert line == 'restrict,from="10.0.0.4" ssh-ed25519 AAAA cluster-internal'
    assert authorize_script(authorized=(line,), line=line) == ""
    text = known_hosts_text({"10.0.0.5": ("ssh-ed25519", "B"), "10.0.0.4": ("ssh-ed25519", "A")})
    assert text == "10.0.0.4 ssh-ed25519 A\n10.0.0.5 ssh-ed25519 B\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    for there, is_current in ((digest, True), ("0", False), (None, False)):
        script = authorize_script(authorized=(line,), line=line, known_hosts_sha256=there, known_hosts=text)
        assert (script == "") is is_current


def test_an_old_key_of_the_cluster_gives_way_and_the_users_stay(tmp_path: Path) -> None:
    keys = tmp_path / ".ssh" / "authorized_keys"
    keys.parent.mkdir()
    keys.write_text("ssh-ed25519 USER me@laptop\nrestrict ssh-ed25519 OLD cluster-internal\n")
    (tmp_path / ".cluster" / "ssh").mkdir(parents=True)
    line = authorized_line("ssh-ed25519 NEW x", head_ip="10.0.0.4")
    script = authorize_script(authorized=(), line=line, known_hosts="10.0.0.4 ssh-ed25519 A\n")
    subprocess.run(["/bin/sh", "-c", script], env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=True)
    assert keys.read_text().splitlines() == ["ssh-ed25519 USER me@laptop", line]
    assert keys.stat().st_mode & 0o077 == 0
    assert (tmp_path / ".cluster" / "ssh" / "known_hosts").read_text() == "10.0.0.4 ssh-ed25519 A\n"


def test_all_failures_are_collected_and_raised_once() -> None:
    tried: list[int] = []

    def work(number: int) -> None:
        tried.append(number)
        if number % 2:
            raise ConnectError(f"node-{number} is gone", hint="cluster status")

    with pytest.raises(ClusterError, match="2 of 4 nodes failed") as raised:
        on_all([0, 1, 2, 3], work)
    assert sorted(tried) == [0, 1, 2, 3]
    assert "node-1 is gone" in raised.value.message
    assert "node-3 is gone" in raised.value.message


def test_a_failure_that_is_the_same_everywhere_is_told_once_and_blames_no_node() -> None:
    def work(_: int) -> None:
        raise ClusterError("there is no such version", hint="another one")

    with pytest.raises(ClusterError) as raised:
        on_all([0, 1], work)
    assert (raised.value.message, raised.value.hint) == ("there is no such version", "another one")


def test_ctrl_c_does_not_wait_for_nodes_that_do_not_answer() -> None:
    both, never = threading.Barrier(2), threading.Event()
    ended: list[int] = []

    def work(number: int) -> None:
        both.wait(60)
        if number == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        never.wait(60)  # who waits for it waits so long
        ended.append(number)

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            on_all([1, 2], work)
        assert not ended
    finally:
        signal.signal(signal.SIGUSR1, before)
        never.set()
