"""The sandbox without root: its requirements, and the suggested command. test_without_root.py tests it with hosts."""

import os
import re
import shutil
import stat
from pathlib import Path

import pytest

from foundation.errors import SandboxError
from foundation.progress import silent
from sandbox import rootless
from sandbox.hosts.system import own_folders
from sandbox.rootless import check_user, enter, find_setting, has_ids


@pytest.mark.parametrize(
    ("text", "enough"),
    [
        ("alice:100000:65536\n", True),
        ("1000:100000:65536\n", True),
        ("bob:100000:65536\nalice:165536:65536\n", True),
        ("alice:100000:65535\n", False),
        ("bob:100000:65536\n", False),
        ("10000:100000:65536\n", False),
        ("# alice:100000:65536\n\nalice:100000\n", False),
        ("", False),
    ],
)
def test_subordinate_ids(*, text: str, enough: bool) -> None:
    assert has_ids(text, "alice", 1000) is enough


@pytest.mark.parametrize(
    ("found", "command"),
    [
        (
            {"kernel/apparmor_restrict_unprivileged_userns": "1", "user/max_user_namespaces": "96365"},
            "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ({"kernel/unprivileged_userns_clone": "0"}, "sudo sysctl kernel.unprivileged_userns_clone=1"),
        ({"user/max_user_namespaces": "0"}, "sudo sysctl user.max_user_namespaces=10000"),
        ({"user/max_user_namespaces": "10", "kernel/unprivileged_userns_clone": "1"}, "sudo -E cluster up"),
        ({}, "sudo -E cluster up"),
    ],
)
def test_the_command_that_allows_namespaces(found: dict[str, str], command: str) -> None:
    assert find_setting(found) == command


def test_missing_commands_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rootless, "has_ids", lambda *_: True)
    monkeypatch.setattr(rootless, "TUN", Path(os.devnull))
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "slirp4netns" else f"/usr/bin/{name}")
    with pytest.raises(SandboxError, match="needs slirp4netns, which") as caught:
        check_user()
    assert caught.value.hint == "sudo apt-get install uidmap slirp4netns"


def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(rootless, "has_ids", lambda *_: False)
    monkeypatch.setattr(rootless, "TUN", tmp_path / "tun")
    with pytest.raises(SandboxError, match=r"newuidmap and slirp4netns.*; 65536 user ids.*; .*/tun, which") as caught:
        check_user()
    assert re.findall(r"sudo (\S+) ", caught.value.hint or "") == ["apt-get", "usermod", "chmod"]


def test_a_device_without_permission_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(rootless, "has_ids", lambda *_: True)
    monkeypatch.setattr(rootless, "TUN", tmp_path / "tun")
    with pytest.raises(SandboxError, match="may not use") as caught:
        check_user()
    assert caught.value.hint == f"sudo chmod 666 {tmp_path / 'tun'}"


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user enters them")
def test_root_needs_no_namespaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[tuple[object, ...]] = []
    for name in ("execvp", "execvpe"):
        monkeypatch.setattr(os, name, lambda *words: started.append(words))
    enter(tmp_path, start=True, report=silent)
    assert started == []


def test_folders_belong_to_root_in_a_host(tmp_path: Path) -> None:
    source, target = tmp_path / "usr", tmp_path / "own"
    for name, mode in (("share/doc", 0o755), ("lib/open", 0o775), ("lib/closed", 0o700)):
        (source / name).mkdir(parents=True)
        (source / name).chmod(mode)
    (source / "share/doc/file").write_text("stays below")
    own_folders(source, target)
    made = {str(path.relative_to(target)): stat.S_IMODE(path.stat().st_mode) for path in target.rglob("*")}
    assert made == {"share": 0o755, "share/doc": 0o755, "lib": 0o755, "lib/open": 0o775}
