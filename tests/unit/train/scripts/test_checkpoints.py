"""Checkpoints of the training scripts: only complete ones are found."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from s3_server import S3Server
from training_scripts import check, opened, save


@pytest.fixture(params=["folder", "bucket"])
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A value for --model-prefix."""
    if request.param == "folder":
        return str(tmp_path / "models" / "net")
    request.getfixturevalue("server")
    return f"s3://models/{tmp_path.name}/net"


def damage(prefix: str, name: str, change: Callable[[bytes], bytes | None], server: Callable[[], S3Server]) -> None:
    """Changes a checkpoint's file without the script. If `change` returns None, the file is removed."""
    if not prefix.startswith("s3://"):
        path = Path(prefix).parent / name
        data = change(path.read_bytes())
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)
        return
    key = prefix.removeprefix("s3://models/").rpartition("/")[0] + f"/{name}"
    client = server().client
    data = change(client.get_object(Bucket="models", Key=key)["Body"].read())
    if data is None:
        client.delete_object(Bucket="models", Key=key)
    else:
        client.put_object(Bucket="models", Key=key, Body=data)


def test_no_checkpoint(checkpoints: ModuleType, prefix: str) -> None:
    place = opened(checkpoints, prefix, to_write=False)
    assert checkpoints.find_newest(place) is None
    assert checkpoints.find_epoch(place, 3) is None


def test_the_newest_checkpoint_is_found(checkpoints: ModuleType, prefix: str) -> None:
    place = opened(checkpoints, prefix)
    for epoch in (1, 2, 10000):
        save(checkpoints, place, epoch)
    save(checkpoints, opened(checkpoints, prefix + "-other"), 7)
    assert check(checkpoints.find_newest(opened(checkpoints, prefix, to_write=False))) == (10000, "first")
    save(checkpoints, place, 1, "second")  # training has started again: the earlier checkpoints are older
    assert check(checkpoints.find_newest(opened(checkpoints, prefix, to_write=False))) == (1, "second")
    assert check(checkpoints.find_epoch(place, 2)) == (2, "first")


def test_different_weights_have_different_marks(checkpoints: ModuleType, tmp_path: Path) -> None:
    marks = set()
    for run in ("first", "second"):
        save(checkpoints, opened(checkpoints, str(tmp_path / run)), 1, run)
        marks.add(checkpoints.find_newest(opened(checkpoints, str(tmp_path / run))).mark)
    assert len(marks) == 2
    assert all(0 <= mark < 2**24 for mark in marks)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("net-0002.params", lambda data: data[:-1]),
        ("net-0002.params", lambda data: data.replace(b"epoch 2", b"epoch 3", 1)),
        ("net-0002.params", lambda _: None),
        ("net-0002.states", lambda data: data + b"x"),
        ("net-0002.states", lambda data: b"\0" * len(data)),
        ("net-0002.states", lambda _: None),
        ("net-0002.json", lambda data: data[: len(data) // 2]),
        ("net-0002.json", lambda _: b""),
        ("net-0002.json", lambda _: b"\xff\xfe"),
        ("net-0002.json", lambda _: b'{"format": 1, "epoch": 2, "files": {}}'),
        ("net-0002.json", lambda _: b"[]"),
        ("net-0002.json", lambda data: data.replace(b'"format": 1', b'"format": 2')),
        ("net-0002.json", lambda data: data.replace(b"net-0002.states", b"../other/file")),
        ("net-0002.json", lambda _: None),
    ],
)
def test_damaged_checkpoints_do_not_count(
    checkpoints: ModuleType,
    prefix: str,
    request: pytest.FixtureRequest,
    name: str,
    change: Callable[[bytes], bytes | None],
) -> None:
    for epoch in (1, 2):
        save(checkpoints, opened(checkpoints, prefix), epoch)
    damage(prefix, name, change, lambda: request.getfixturevalue("server"))
    assert check(checkpoints.find_newest(opened(checkpoints, prefix, to_write=False))) == (1, "first")


def test_a_checkpoint_without_a_manifest(checkpoints: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "net-0004.params").write_bytes(b"weights")
    place = opened(checkpoints, str(tmp_path / "net"))
    assert checkpoints.find_newest(place) is None
    found = checkpoints.find_epoch(place, 4)
    assert (found.epoch, found.manifest, set(found.paths)) == (4, {}, {"params"})


def test_a_damaged_epoch_is_an_error(checkpoints: ModuleType, tmp_path: Path) -> None:
    place = opened(checkpoints, str(tmp_path / "net"))
    save(checkpoints, place, 1)
    (tmp_path / "net-0001.params").write_bytes(b"other")
    with pytest.raises(checkpoints.ScriptError, match=r"net-0001.params is damaged"):
        checkpoints.find_epoch(place, 1)


def test_prune(checkpoints: ModuleType, prefix: str) -> None:
    place = opened(checkpoints, prefix)
    for epoch in range(1, 6):
        save(checkpoints, place, epoch)
    assert checkpoints.prune(place, 2) == [3, 2, 1]
    assert checkpoints.prune(place, 2) == []
    left = {f"net-{epoch:04d}.{end}" for epoch in (4, 5) for end in ("params", "states", "json")}
    assert set(place.sizes()) == left | {"net-symbol.json"}


def test_prune_without_permission_to_delete(
    checkpoints: ModuleType, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job's credentials allow writing but not deleting."""
    place = opened(checkpoints, "s3://models/emptied/net")

    def refuse(url: str) -> None:
        raise RefusedError(f"{url}: S3 refuses: 403 AccessDenied")

    monkeypatch.setattr(place._store, "delete", refuse)
    for epoch in range(1, 4):
        save(checkpoints, place, epoch)
    assert checkpoints.prune(place, 1) == [2, 1]
    assert checkpoints.prune(place, 1) == []
    assert set(place.sizes()) == {"net-symbol.json", "net-0003.params", "net-0003.states", "net-0003.json"}
    left = {key: body for key, body in server.read("models").items() if key.startswith("emptied/net-0001.")}
    assert len(left) == 3
    assert set(left.values()) == {b""}
    assert checkpoints.find_epoch(place, 1) is None
    assert check(checkpoints.find_newest(place)) == (3, "first")


def test_the_manifest(checkpoints: ModuleType, tmp_path: Path) -> None:
    save(checkpoints, opened(checkpoints, str(tmp_path / "net")), 3)
    manifest = json.loads((tmp_path / "net-0003.json").read_text())
    assert (manifest["epoch"], manifest["run"], manifest["symbol"]) == (3, "first", "net-symbol.json")
    assert manifest["files"]["params"]["name"] == "net-0003.params"


def test_a_folder_that_cannot_be_written_to_is_named(checkpoints: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(checkpoints.ScriptError, match=r"--model-prefix: the folder .*/file cannot be used"):
        opened(checkpoints, str(tmp_path / "file" / "net"))


def test_a_missing_bucket_is_named(checkpoints: ModuleType, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.staging.s3.FIRST_PAUSE_S", 0.001)
    place = opened(checkpoints, "s3://no-such-bucket/net")
    with pytest.raises(checkpoints.ScriptError, match=r"--model-prefix: s3://no-such-bucket/net"):
        save(checkpoints, place, 1)
    assert not any(key.startswith("net") for key in server.read("models"))


def test_saving_deletes_nothing(checkpoints: ModuleType, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The role of `instance_profile = "auto"`, for example, may write but not delete."""
    place = opened(checkpoints, prefix)
    monkeypatch.setattr(place, "delete", lambda name: pytest.fail(f"{name} was deleted"))
    save(checkpoints, place, 1)
    save(checkpoints, place, 1, "second")
    assert check(checkpoints.find_newest(place)) == (1, "second")


class RefusedError(OSError):
    code = "AccessDenied"


class ExpiredError(OSError):
    code = "ExpiredToken"


class Expired:
    """A store whose credentials have expired."""

    def put_file(self, _path: str, url: str) -> None:
        raise ExpiredError(f"{url}: S3 refuses: 400 ExpiredToken")


class Renewed:
    def __init__(self) -> None:
        self.urls: list[str] = []

    def put_file(self, _path: str, url: str) -> None:
        self.urls.append(url)


def test_expired_credentials_are_renewed(checkpoints: ModuleType) -> None:
    renewed = Renewed()
    bucket = checkpoints.Bucket("s3://models/net", Expired(), lambda: renewed)
    for name in ("net-0001.params", "net-0001.json"):
        bucket.write(name, b"content")
    assert renewed.urls == ["s3://models/net-0001.params", "s3://models/net-0001.json"]


def test_credentials_that_cannot_be_renewed(checkpoints: ModuleType) -> None:
    def renew() -> Any:
        raise OSError("there is no instance profile")

    bucket = checkpoints.Bucket("s3://models/net", Expired(), renew)
    with pytest.raises(checkpoints.ScriptError, match=r"s3://models/net-1.json: .*ExpiredToken"):
        bucket.write("net-1.json", b"content")


def save_batch(checkpoints: ModuleType, place: Any, sequence: Any, epoch: int, batch: int) -> str:
    writers = {kind: lambda path: Path(path).write_text(f"{epoch} {batch}") for kind in ("params", "states")}
    name: str = checkpoints.save(place, epoch, writers, symbol="{}", facts={}, **sequence.next(batch))
    return name


def place_of(checkpoints: ModuleType, prefix: str) -> tuple[int, int]:
    found = checkpoints.find_newest(opened(checkpoints, prefix, to_write=False))
    assert Path(found.paths["params"]).read_text() == f"{found.epoch} {found.batch}"
    return found.epoch, found.batch


def test_checkpoints_within_epochs_take_turns(
    checkpoints: ModuleType, prefix: str, request: pytest.FixtureRequest
) -> None:
    place, sequence = opened(checkpoints, prefix), checkpoints.Sequence(None)
    for epoch, batch in ((0, 10), (0, 20), (0, 30), (1, 0), (1, 10)):
        save_batch(checkpoints, place, sequence, epoch, batch)
        assert place_of(checkpoints, prefix) == (epoch, batch)
    names = sorted(name for name in place.sizes() if name.endswith(".json"))
    assert names == ["net-0001.json", "net-batch-0.json", "net-batch-1.json", "net-symbol.json"]
    assert checkpoints.prune(place, 1) == []
    # If a checkpoint is damaged or half overwritten, the one before it counts.
    damage(prefix, "net-batch-1.states", lambda data: data[::-1], lambda: request.getfixturevalue("server"))
    assert place_of(checkpoints, prefix) == (1, 0)
    damage(prefix, "net-0001.json", lambda data: data[:20], lambda: request.getfixturevalue("server"))
    assert place_of(checkpoints, prefix) == (0, 30)
    damage(
        prefix, "net-batch-0.json", lambda data: data.replace(b"30", b'"x"'), lambda: request.getfixturevalue("server")
    )
    assert checkpoints.find_newest(opened(checkpoints, prefix, to_write=False)) is None


def test_the_next_one_replaces_the_older_and_is_newer_despite_the_clock(
    checkpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = str(tmp_path / "net")
    place, sequence = opened(checkpoints, prefix), checkpoints.Sequence(None)
    for batch in (10, 20):
        save_batch(checkpoints, place, sequence, 0, batch)
    # The job continues on another node, whose clock is an hour behind.
    earlier = checkpoints.time.time() - 3600
    monkeypatch.setattr(checkpoints.time, "time", lambda: earlier)
    sequence = checkpoints.Sequence(checkpoints.find_newest(place))
    assert save_batch(checkpoints, place, sequence, 0, 30).endswith("net-batch-0.params")
    assert place_of(checkpoints, prefix) == (0, 30)
    save_batch(checkpoints, place, sequence, 1, 0)
    assert place_of(checkpoints, prefix) == (1, 0)


def test_only_a_jobs_own_checkpoints(checkpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = opened(checkpoints, str(tmp_path / "net"))
    monkeypatch.setenv("CLUSTER_JOB_ID", "job-1")
    save(checkpoints, place, 1)
    monkeypatch.setenv("CLUSTER_JOB_ID", "job-2")
    save(checkpoints, place, 2)
    monkeypatch.delenv("CLUSTER_JOB_ID")
    save(checkpoints, place, 3)
    epochs = [checkpoints.find_newest(place, job) for job in ("job-1", "job-2", None)]
    assert [found.epoch for found in epochs] == [1, 2, 3]
    assert checkpoints.find_newest(place, "job-3") is None
