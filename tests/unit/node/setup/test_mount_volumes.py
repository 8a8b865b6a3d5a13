"""The program that mounts volumes, as far as it needs no mounts."""

from pathlib import Path

import pytest

from node.setup.volumes import mount_volumes


def test_other_installations_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """apt-get update fails at once while a fresh Ubuntu updates itself: DPkg::Lock::Timeout is for other locks."""
    calls: list[list[str]] = []
    monkeypatch.setattr(mount_volumes, "run", lambda words, *_: calls.append(words))
    mount_volumes.install(["nfs-common"])
    assert Path(calls[0][1]).is_file()
    assert [Path(calls[0][1]).name, calls[1][-1], calls[2][-1]] == ["apt_lock.py", "update", "nfs-common"]
