"""Pinned host keys, and the lines of authorized_keys and known_hosts."""

from pathlib import Path

import pytest

from bootstrap.ssh.keys import HostKeyPins, authorized_line, known_hosts_text
from foundation.errors import ClusterError
from foundation.thread_pool import map_in_threads


def test_host_keys_are_pinned_and_never_replaced(tmp_path: Path) -> None:
    pins = HostKeyPins(tmp_path / "cluster" / "known_hosts")
    assert pins.find("i-1") is None
    map_in_threads(lambda n, _: pins.pin(f"i-{n}", "ssh-ed25519", f"AAA{n}"), range(20), threads=20)
    assert [pins.find(f"i-{n}") for n in range(20)] == [("ssh-ed25519", f"AAA{n}") for n in range(20)]
    with pytest.raises(ClusterError, match="pinned to another host key"):
        pins.pin("i-1", "ssh-ed25519", "BBBB")
    assert "i-3 ssh-ed25519 AAA3\n" in pins.path.read_text()
    assert pins.path.stat().st_mode & 0o077 == 0
    for damage in (b"half line\n", b"\xff\xfe\x00"):
        pins.path.write_bytes(damage)
        with pytest.raises(ClusterError, match="known_hosts:1: not a pinned host key"):
            pins.find("i-3")


def test_the_clusters_key_is_restricted_to_the_head() -> None:
    line = authorized_line("ssh-ed25519 AAAA cluster-internal demo", head_ip="10.0.0.4")
    assert line == 'restrict,from="10.0.0.4" ssh-ed25519 AAAA cluster-internal'
    text = known_hosts_text({"10.0.0.5": ("ssh-ed25519", "B"), "10.0.0.4": ("ssh-ed25519", "A")})
    assert text == "10.0.0.4 ssh-ed25519 A\n10.0.0.5 ssh-ed25519 B\n"
