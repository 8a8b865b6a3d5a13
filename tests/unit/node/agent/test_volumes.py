"""Whether the volumes of a job answer; real mounts are in tests/sandbox/bootstrap/test_volumes.py."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from node.agent import volumes
from node.setup.volumes import volume_probe


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mounted.json"
    path.write_text(json.dumps({"/shared": {"server": "node-0 (10.0.0.4)"}}))
    monkeypatch.setattr(volume_probe, "NOTES", str(path))
    return path


def text_of(mounts: list[str], limit_s: float = 20.0) -> str:
    dead = asyncio.run(volumes.find_dead(mounts, limit_s))
    assert dead is not None
    assert dead.mount == "/shared"
    return dead.text


def test_a_mount_that_works() -> None:
    assert asyncio.run(volumes.find_dead(["/proc"])) is None
    assert asyncio.run(volumes.find_dead([])) is None


def test_a_mount_that_has_ended(notes: Path) -> None:
    assert text_of(["/proc", "/shared"]) == "volume /shared of node-0 (10.0.0.4): the connection is lost"
    notes.unlink()
    assert text_of(["/shared"]) == "volume /shared: it is not mounted"


@pytest.mark.parametrize(
    ("probe", "limit_s", "message"),
    [
        ("exec sleep 600", 0.2, "no answer for 0.2 s"),
        ("echo \"stat: cannot statx '$1': Input/output error\" >&2; exit 1", 20.0, "Input/output error"),
        ("kill -9 $$", 20.0, "its probe ended with exit code -9"),
    ],
)
def test_a_server_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: str, limit_s: float, message: str
) -> None:
    monkeypatch.setattr(volume_probe, "is_mounted", lambda _: True)
    (tmp_path / "stat").write_text(f"#!/bin/sh\n{probe}\n")
    (tmp_path / "stat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert text_of(["/shared"], limit_s) == f"volume /shared of node-0 (10.0.0.4): {message}"
