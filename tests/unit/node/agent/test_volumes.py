"""Whether the volumes of a job answer; real mounts are in tests/sandbox/bootstrap/test_volumes.py."""

import asyncio
import json
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
        ("import time; time.sleep(600)", 0.2, "no answer for 0.2 s"),
        ("print('Input/output error', end='')", 20.0, "Input/output error"),
    ],
)
def test_a_server_that_fails(monkeypatch: pytest.MonkeyPatch, probe: str, limit_s: float, message: str) -> None:
    monkeypatch.setattr(volume_probe, "is_mounted", lambda _: True)
    monkeypatch.setattr(volumes, "ASK", probe)
    assert text_of(["/shared"], limit_s) == f"volume /shared of node-0 (10.0.0.4): {message}"


def test_a_watch_reports_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes, "EVERY_S", 0.01)
    messages: list[str] = []
    released: list[str] = []

    async def release(mount: str) -> None:
        released.append(mount)

    monkeypatch.setattr(volumes, "release", release)
    asyncio.run(volumes.watch(["/shared"], messages.append))
    assert released == ["/shared"]
    assert messages == ["volume /shared of node-0 (10.0.0.4): the connection is lost"]
