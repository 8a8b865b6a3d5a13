"""The copy of a job's record and log in S3, against moto's S3 over HTTP."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from project import REPOSITORY
from s3_server import REGION, S3Server, serve_s3

sys.path.insert(0, str(REPOSITORY / "train" / "node"))  # by path, as on the nodes
import object_store
import publish

BUCKET = "results"
SECRETS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}


@pytest.fixture(scope="module")
def shared_server() -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        with serve_s3() as server:
            yield server


@pytest.fixture
def server(shared_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setattr(object_store, "FIRST_PAUSE_S", 0.001)
    shared_server.put(BUCKET, {})
    yield shared_server
    shared_server.reset()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "record.json").write_text('{"state": "running"}')
    (tmp_path / "events").write_text('{"t": 1}\n')
    (tmp_path / "ranks" / "worker-0.log").write_text("one\n")
    return tmp_path


class Job:
    """A publisher of a job, and what it has said."""

    def __init__(self, folder: Path, url: str, *, results: str | None = "s3://results/runs/") -> None:
        env = {"AWS_ENDPOINT_URL": url, "S3_REGION": REGION}
        order = {"job": "job-1", "results_url": results, "env": env}
        self.said: list[str] = []
        self.secrets: Callable[[], dict[str, str]] = lambda: dict(SECRETS)
        self.publisher = publish.Publisher(order, str(folder), self.credentials, self.said.append)

    def credentials(self) -> dict[str, str]:
        return self.secrets()


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_record_at_the_start_and_everything_at_the_end(server: S3Server, folder: Path) -> None:
    job = Job(folder, server.url)
    job.publisher.start()
    wait_until(lambda: server.read(BUCKET))
    assert server.read(BUCKET) == {"runs/job-1/record.json": b'{"state": "running"}'}
    (folder / "record.json").write_text('{"state": "done"}')
    (folder / "ranks" / "worker@node-1.log").write_text("two\n")
    assert job.publisher.finish(60.0)
    assert server.read(BUCKET) == {
        "runs/job-1/record.json": b'{"state": "done"}',
        "runs/job-1/events": b'{"t": 1}\n',
        "runs/job-1/ranks/worker-0.log": b"one\n",
        "runs/job-1/ranks/worker@node-1.log": b"two\n",
    }
    assert job.said == []


def test_what_changes_meanwhile_is_copied_once(server: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "EVERY_S", 0.05)
    monkeypatch.setattr(publish, "REST", 0)
    put: list[str] = []
    real = object_store.Store.put_file
    monkeypatch.setattr(object_store.Store, "put_file", lambda *words: (real(*words), put.append(words[2]))[0])
    (folder / "ranks" / "worker@node-1.log").write_text("two\n")
    job = Job(folder, server.url)
    job.publisher.start()
    wait_until(lambda: len(put) == 3)
    with (folder / "events").open("a") as stream:
        stream.write('{"t": 2}\n')
    wait_until(lambda: len(put) == 4)
    (folder / "ranks" / "worker@node-1.log").rename(folder / "ranks" / "worker-1.log")
    assert job.publisher.finish(60.0)
    names = [url.removeprefix("s3://results/runs/job-1/") for url in put]
    assert names[0] == "record.json"
    assert sorted(names[1:3]) == ["events", "ranks/worker-0.log"]
    assert names[3:] == ["events", "ranks/worker-1.log"]
    assert server.read(BUCKET)["runs/job-1/events"] == b'{"t": 1}\n{"t": 2}\n'


def test_credentials_are_asked_for_before_every_round(
    server: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "EVERY_S", 0.01)
    asked: list[int] = []
    job = Job(folder, server.url)
    job.secrets = lambda: (asked.append(1), dict(SECRETS))[1]
    job.publisher.start()
    wait_until(lambda: len(asked) >= 3)
    assert job.publisher.finish(60.0)


def test_a_problem_is_told_once_and_what_is_left_comes_later(
    server: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "EVERY_S", 0.01)
    asked: list[int] = []
    job = Job(folder, server.url, results="s3://not-yet-there/")

    def secrets() -> dict[str, str]:
        asked.append(1)
        if len(asked) < 3:
            raise OSError("the instance metadata service gives no credentials")
        return dict(SECRETS)

    job.secrets = secrets
    job.publisher.start()
    wait_until(lambda: len(asked) >= 5)
    server.put("not-yet-there", {})
    assert job.publisher.finish(60.0)
    assert job.said[0].endswith("gives no credentials")
    assert "there" in job.said[1]
    assert "NoSuchBucket" in job.said[1]
    assert len(job.said) == 2
    assert len(server.read("not-yet-there")) == 3


def test_the_end_does_not_wait_longer_than_it_may(server: S3Server, folder: Path) -> None:
    job, given = Job(folder, server.url), threading.Event()

    def secrets() -> dict[str, str]:
        assert given.wait(60)
        return dict(SECRETS)

    job.secrets = secrets
    job.publisher.start()
    assert not job.publisher.finish(0.01)
    assert job.said == ["the job's record and log in S3 are not complete: no time was left to write them"]
    given.set()
    job.publisher._thread.join()


def test_a_log_that_is_too_large_is_said(server: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "MAX_PUT_BYTES", 25)
    (folder / "events").write_text("x" * 26)
    job = Job(folder, server.url)
    job.publisher.start()
    assert not job.publisher.finish(60.0)
    assert len(job.said) == 1
    assert "events is larger than" in job.said[0]
    assert set(server.read(BUCKET)) == {"runs/job-1/record.json", "runs/job-1/ranks/worker-0.log"}


def test_one_file_that_fails_leaves_the_others_alone(
    server: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(1, 20):
        (folder / "ranks" / f"worker-{rank}.log").write_text(f"{rank}\n")
    real = object_store.Store.put_file

    def put_file(store: Any, path: str, url: str) -> None:
        if url.endswith("-7.log"):
            raise RuntimeError("what nobody thought of")
        real(store, path, url)

    monkeypatch.setattr(object_store.Store, "put_file", put_file)
    job = Job(folder, server.url)
    job.publisher.start()
    assert not job.publisher.finish(60.0)
    assert job.said == ["the job's log cannot be copied to S3: what nobody thought of"]
    assert len(server.read(BUCKET)) == 2 + 19


def test_the_record_comes_after_what_it_tells_of(
    server: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[str] = []
    real = object_store.Store.put_file
    monkeypatch.setattr(object_store.Store, "put_file", lambda *words: (real(*words), put.append(words[2]))[0])
    job = Job(folder, server.url)
    job.publisher.start()
    wait_until(lambda: put)
    (folder / "record.json").write_text('{"state": "done"}')
    assert job.publisher.finish(60.0)
    assert put[0] == put[-1] == "s3://results/runs/job-1/record.json"


def test_a_job_that_never_began_is_published_at_its_end(server: S3Server, folder: Path) -> None:
    job = Job(folder, server.url)
    assert job.publisher.finish(60.0)
    assert len(server.read(BUCKET)) == 3


def test_without_a_place_for_results_nothing_is_done(folder: Path) -> None:
    job = Job(folder, "http://127.0.0.1:9", results=None)
    job.publisher.start()
    assert job.publisher.finish(0.0)
    assert job.said == []
