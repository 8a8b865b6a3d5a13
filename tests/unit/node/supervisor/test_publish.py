"""The copy of a job's record and log in S3, against moto's S3 over HTTP."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from node import job_folder
from node.staging import s3
from node.supervisor import publish
from s3_server import REGION, S3Server, server, shared_server
from waits import until

__all__ = ["server", "shared_server"]
BUCKET = "results"
SECRETS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}


@pytest.fixture(autouse=True)
def bucket(server: S3Server) -> None:
    server.put(BUCKET, {})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Path(job_folder.path("job-1"))
    made.mkdir(parents=True)
    (made / "record.json").write_text('{"state": "running"}')
    (made / "events").write_text('{"t": 1}\n')
    return made


def start(
    url: str,
    messages: list[str],
    secrets: Callable[[], dict[str, str]] = SECRETS.copy,
    results: str = "s3://results/runs/job-1/",
) -> publish.Copying:
    """Starts the copying of a job."""

    class Copying(publish.Copying):
        def _secrets(self) -> dict[str, str]:
            return secrets()

    return Copying("job-1", results, {"AWS_ENDPOINT_URL": url, "S3_REGION": REGION}, None, messages.append)


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs of the objects that are written, in order."""
    urls: list[str] = []
    real = s3.Store.put_file
    monkeypatch.setattr(s3.Store, "put_file", lambda *words: (real(*words), urls.append(words[2]))[0])
    return urls


def test_the_record_is_copied_first_and_last(server: S3Server, folder: Path, put: list[str]) -> None:
    messages: list[str] = []
    copying = start(server.url, messages)
    until(lambda: server.read(BUCKET))
    assert server.read(BUCKET) == {"runs/job-1/record.json": b'{"state": "running"}'}
    (folder / "record.json").write_text('{"state": "done"}')
    assert copying.finish(60.0)
    assert server.read(BUCKET) == {"runs/job-1/record.json": b'{"state": "done"}', "runs/job-1/events": b'{"t": 1}\n'}
    assert put[0] == put[-1] == "s3://results/runs/job-1/record.json"
    assert messages == []


def test_a_problem_is_reported_once_and_the_rest_copied_later(
    server: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "EVERY_S", 0.01)
    asked: list[int] = []
    messages: list[str] = []

    def secrets() -> dict[str, str]:
        asked.append(1)
        if len(asked) < 3:
            raise OSError("the instance metadata service gives no credentials")
        return dict(SECRETS)

    copying = start(server.url, messages, secrets, "s3://not-yet-there/job-1/")
    until(lambda: len(asked) >= 5)
    server.put("not-yet-there", {})
    assert copying.finish(60.0)
    assert messages[0].endswith("gives no credentials")
    assert "there" in messages[1]
    assert "NoSuchBucket" in messages[1]
    assert len(messages) == 2
    assert len(server.read("not-yet-there")) == 2


def test_the_end_waits_only_for_its_timeout(server: S3Server, folder: Path) -> None:
    messages, given = list[str](), threading.Event()

    def secrets() -> dict[str, str]:
        assert given.wait(60)
        return dict(SECRETS)

    copying = start(server.url, messages, secrets)
    assert not copying.finish(0.01)
    assert messages == ["the job's record and log in S3 are incomplete: there was no time to write them"]
    given.set()
    copying._thread.join()


def test_a_link_on_the_volume_is_not_followed(folder: Path, tmp_path: Path) -> None:
    """Every node can write to the volume; the supervisor also to the head's own files."""
    profile, target = tmp_path / ".profile", tmp_path / "volume" / "events"
    profile.write_text("mine")
    target.parent.mkdir()
    for _ in range(2):
        Path(f"{target}.new").symlink_to(profile)
        publish.put_in_folder(str(folder / "events"), str(target))
    assert (profile.read_text(), target.read_text()) == ("mine", (folder / "events").read_text())
    assert [path.name for path in target.parent.iterdir()] == ["events"]
