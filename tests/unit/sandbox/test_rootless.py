"""The sandbox without root: its requirements, and the suggested command. test_without_root.py tests it with hosts."""

import re
import shutil
from pathlib import Path

import pytest

from ec2_sandbox import rootless
from ec2_sandbox.errors import SandboxError
from ec2_sandbox.hosts import namespaces
from ec2_sandbox.rootless import check_user, has_ids


def test_a_number_of_a_call_is_that_of_every_architecture() -> None:
    """They agree since Linux 5.1: 424 was the first one."""
    numbers = {name: value for name, value in vars(namespaces).items() if name.startswith("SYS_")}
    assert [name for name, value in numbers.items() if isinstance(value, int) and value < 424] == []


@pytest.mark.parametrize(
    ("text", "enough"),
    [
        ("alice:100000:65536\n", True),
        ("1000:100000:65536\n", True),
        ("alice:100000:65535\n", False),
        ("bob:100000:65536\n", False),
        ("", False),
    ],
)
def test_subordinate_ids(*, text: str, enough: bool) -> None:
    assert has_ids(text, "alice", 1000) is enough


def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(rootless, "has_ids", lambda *_: False)
    monkeypatch.setattr(rootless, "TUN", tmp_path / "tun")
    with pytest.raises(SandboxError, match=r"newuidmap and slirp4netns.*; 65536 user ids.*; .*/tun, which") as caught:
        check_user()
    assert re.findall(r"sudo (\S+) ", caught.value.hint or "") == ["apt-get", "usermod", "chmod"]
