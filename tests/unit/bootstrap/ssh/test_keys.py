"""Pinned host keys, and the lines of authorized_keys and known_hosts."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from bootstrap.ssh.keys import HostKeyPins, authorize_script, authorized_line, known_hosts_text
from foundation.errors import ClusterError
from foundation.thread_pool import map_in_threads


def test_host_keys_are_pinned_and_never_replaced(tmp_path: Path) -> None:
    pins = HostKeyPins(tmp_path / "cluster" / "known_hosts")
    assert pins.find("i-1") is None
    map_in_threads(lambda n, _: pins.pin(f"i-{n}", "ssh-ed25519", f"AAA{n}"), range(20), threads=20)
    assert [pins.find(f"i-{n}") for n in range(20)] == [("ssh-ed25519", f"AAA{n}") for n in range(20)]
    with pytest.raises(ClusterError, match="pinned to another host key"):
        pins.pin("i-1", "ssh-ed25519", "BBBB")
    pins.keep_only(["i-3"])
    assert pins.path.read_text() == "i-3 ssh-ed25519 AAA3\n"
    assert pins.path.stat().st_mode & 0o077 == 0
    for damage in (b"half line\n", b"\xff\xfe\x00"):
        pins.path.write_bytes(damage)
        with pytest.raises(ClusterError, match="known_hosts:1: not a pinned host key"):
            pins.find("i-3")


def test_the_clusters_key_is_restricted_to_the_head() -> None:
    line = authorized_line("ssh-ed25519 AAAA cluster-internal demo", head_ip="10.0.0.4")
    assert line == 'restrict,from="10.0.0.4" ssh-ed25519 AAAA cluster-internal'
    assert authorize_script(authorized=(line,), line=line) is None
    text = known_hosts_text({"10.0.0.5": ("ssh-ed25519", "B"), "10.0.0.4": ("ssh-ed25519", "A")})
    assert text == "10.0.0.4 ssh-ed25519 A\n10.0.0.5 ssh-ed25519 B\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    for there, is_current in ((digest, True), ("0", False), (None, False)):
        script = authorize_script(authorized=(line,), line=line, known_hosts_sha256=there, known_hosts=text)
        assert (script is None) is is_current


def test_a_new_cluster_key_replaces_the_old_one_only(tmp_path: Path) -> None:
    keys = tmp_path / ".ssh" / "authorized_keys"
    keys.parent.mkdir()
    keys.write_text("ssh-ed25519 USER me@laptop\nrestrict ssh-ed25519 OLD cluster-internal\n")
    (tmp_path / ".cluster" / "ssh").mkdir(parents=True)
    line = authorized_line("ssh-ed25519 NEW x", head_ip="10.0.0.4")
    script = authorize_script(authorized=(), line=line, known_hosts="10.0.0.4 ssh-ed25519 A\n")
    assert script is not None
    subprocess.run(script.here(), env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=True)
    assert keys.read_text().splitlines() == ["ssh-ed25519 USER me@laptop", line]
    assert keys.stat().st_mode & 0o077 == 0
    assert (tmp_path / ".cluster" / "ssh" / "known_hosts").read_text() == "10.0.0.4 ssh-ed25519 A\n"
