"""`data put`, `get`, `ls` and `rm` with the real s3fs against moto's S3 over HTTP."""

import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from folders import read_files, write_files
from foundation.errors import ClusterError, NotFoundError, UsageError
from foundation.progress import Event, silent
from http_server import Asked, Faults, Refusal, cutting_proxy, judging_proxy
from s3_server import REGION, S3Server
from train.s3 import operations as s3
from train.s3.transfer import PART_BYTES, Progress
from train.s3.transfer_plan import Download, Upload
from train.s3.url import S3Object, S3Url

BUCKET = "datasets"


class Watching(Progress):
    """Counts the moved bytes and finished files, and calls at_first at the first move."""

    def __init__(self, at_first: Any = None) -> None:
        self.transfers: Sequence[Upload | Download] = ()
        self.bytes = 0
        self.files: list[Upload | Download] = []
        self._at_first = at_first

    def watch(self, transfers: Sequence[Upload | Download], /) -> "Watching":
        self.transfers = transfers
        return self

    def moved(self, size_bytes: int) -> None:
        self.bytes += size_bytes
        if self._at_first is not None:
            act, self._at_first = self._at_first, None
            act()

    def finished(self, transfer: Upload | Download) -> None:
        self.files.append(transfer)


def put(*words: str, create_bucket: bool = False, **more: Any) -> s3.Done:
    return s3.put(words[:-1], words[-1], region=REGION, create_bucket=create_bucket, report=silent, **more)


def get(*words: str, **more: Any) -> s3.Done:
    return s3.get(words[:-1], words[-1], region=REGION, **more)


AWKWARD = {
    "plain.rec": b"1",
    "empty": b"",
    "a b/c d.rec": b"2",
    "ü/日本.rec": b"3",
    "a+b%20c&d=e": b"4",
    "#x?versionId=1": b"5",
    'it\'s "quoted" $(id) `id`': b"6",
    "a\\backslash": b"8",
    "...": b"9",
    "*[?]": b"10",
    ".hidden": b"11",
    "~": b"12",
}


def test_a_folder_comes_back_as_it_was(server: S3Server, tmp_path: Path) -> None:
    contents = {**AWKWARD, "one part": os.urandom(PART_BYTES), "large": os.urandom(2 * PART_BYTES + 12345)}
    write_files(tmp_path / "data", contents)
    up, down = Watching(), Watching()
    put(str(tmp_path / "data"), f"s3://{BUCKET}/in/", create_bucket=True, watch=up.watch)
    assert server.read(BUCKET) == {f"in/{name}": content for name, content in contents.items()}
    get(f"s3://{BUCKET}/in", str(tmp_path / "back"), watch=down.watch)
    assert read_files(tmp_path / "back") == contents
    for watching in (up, down):
        assert watching.bytes == sum(map(len, contents.values()))
        assert sorted(watching.files, key=str) == sorted(watching.transfers, key=str)
    assert not server.unfinished(BUCKET)


def test_get_replaces_files_with_the_users_mode(server: S3Server, tmp_path: Path) -> None:
    server.put(BUCKET, {"x": b"new"})
    write_files(tmp_path, {"x": b"old and longer"})
    mask = os.umask(0o027)
    try:
        get(f"s3://{BUCKET}/x", str(tmp_path))
    finally:
        os.umask(mask)
    assert (tmp_path / "x").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_globs_and_several_sources(server: S3Server, tmp_path: Path) -> None:
    server.put(
        BUCKET, {"a/1.rec": b"", "a/2.txt": b"", "a/b/3.rec": b"", "c[1].rec": b"", "c1.rec": b"", "folder/": b""}
    )

    def names(*sources: str) -> set[str]:
        target = tmp_path / str(len(list(tmp_path.iterdir())))
        get(*(f"s3://{BUCKET}/{source}" for source in sources), str(target))
        return set(read_files(target))

    assert names("") == {"a/1.rec", "a/2.txt", "a/b/3.rec", "c[1].rec", "c1.rec"}
    assert names("a/*.rec") == {"1.rec"}
    assert names("a/*") == {"1.rec", "2.txt", "b/3.rec"}
    assert names("**/*.rec") == {"1.rec", "3.rec", "c[1].rec", "c1.rec"}
    assert names("a", "c1.rec") == {"a/1.rec", "a/2.txt", "a/b/3.rec", "c1.rec"}
    assert names("a/", "c1.rec") == {"1.rec", "2.txt", "b/3.rec", "c1.rec"}
    assert names("c[1].rec", "a/b/") == {"c[1].rec", "3.rec"}


def shown(url: str | None, *, recursive: bool = False) -> list[str]:
    entries = s3.ls(url, region=REGION, recursive=recursive)
    return [str(entry.url if isinstance(entry, S3Object) else entry).removeprefix("s3://") for entry in entries]


def test_ls(server: S3Server) -> None:
    server.put(BUCKET, {"a/1.rec": b"abc", "a/b/2.rec": b"", "a/b/": b"", "a.txt": b"d", "e/": b""})
    server.put("other", {})
    assert shown(None) == ["datasets/", "other/"]
    assert shown("s3://other") == []
    assert shown(f"s3://{BUCKET}") == ["datasets/a.txt", "datasets/a/", "datasets/e/"]
    assert shown(f"s3://{BUCKET}/a") == ["datasets/a/1.rec", "datasets/a/b/"]
    assert shown(f"s3://{BUCKET}/a/", recursive=True) == ["datasets/a/1.rec", "datasets/a/b/2.rec"]
    assert shown(f"s3://{BUCKET}/a.txt") == ["datasets/a.txt"]
    assert shown(f"s3://{BUCKET}/e/") == []
    (entry,) = s3.ls(f"s3://{BUCKET}/a/1.rec", region=REGION)
    assert (entry.url, entry.size_bytes) == (S3Url(bucket=BUCKET, key="a/1.rec"), 3)
    with pytest.raises(NotFoundError, match="no such object or folder"):
        s3.ls(f"s3://{BUCKET}/nope", region=REGION)


def test_ls_of_a_glob(server: S3Server) -> None:
    names = ("a/1.rec", "a/2.txt", "a/b/3.rec", "a/b/", "c/1.rec", "d[1]/x", "d1/y")
    server.put("b-1", dict.fromkeys(names, b""))
    # A matching folder is shown as one entry, or with all of its contents.
    assert shown("s3://b-1/a/*") == ["b-1/a/1.rec", "b-1/a/2.txt", "b-1/a/b/"]
    assert shown("s3://b-1/a/*", recursive=True) == ["b-1/a/1.rec", "b-1/a/2.txt", "b-1/a/b/3.rec"]
    assert shown("s3://b-1/?") == ["b-1/a/", "b-1/c/"]
    # With a trailing slash, the contents of matching folders are shown.
    assert shown("s3://b-1/?/") == ["b-1/a/1.rec", "b-1/a/2.txt", "b-1/a/b/", "b-1/c/1.rec"]
    # A folder with the glob as its name comes before matches.
    assert shown("s3://b-1/d[1]") == shown("s3://b-1/d[1]/") == ["b-1/d[1]/x"]
    with pytest.raises(NotFoundError, match=r"\*\.nope: no object matches"):
        shown("s3://b-1/*.nope")


@pytest.mark.parametrize(
    ("urls", "recursive", "left"),
    [
        (["a.txt"], False, {"a/1.rec", "a/b/2.rec", "a/b/", "ab"}),
        (["a/*.rec"], False, {"a.txt", "a/b/2.rec", "a/b/", "ab"}),
        (["a"], True, {"a.txt", "ab"}),
        (["a/b/", "a/b"], True, {"a.txt", "a/1.rec", "ab"}),
        (["*"], True, set()),
    ],
)
def test_rm(server: S3Server, urls: list[str], recursive: bool, left: set[str]) -> None:  # noqa: FBT001 - a table's column
    server.put(BUCKET, dict.fromkeys(["a.txt", "ab", "a/1.rec", "a/b/2.rec", "a/b/"], b""))
    count = s3.rm([f"s3://{BUCKET}/{url}" for url in urls], region=REGION, recursive=recursive)
    assert set(server.read(BUCKET)) == left
    assert count == 5 - len(left)


@pytest.mark.parametrize("url", ["", "a", "a*", "a/b*/"])
def test_rm_deletes_a_folder_only_recursively(server: S3Server, url: str) -> None:
    server.put(BUCKET, {"a/b/c": b"", "a.txt": b""})
    with pytest.raises(UsageError, match="nothing was deleted") as caught:
        s3.rm([f"s3://{BUCKET}/a.txt", f"s3://{BUCKET}/{url}"], region=REGION)
    assert "--recursive" in str(caught.value.hint)
    assert set(server.read(BUCKET)) == {"a/b/c", "a.txt"}


def test_rm_of_a_bucket_deletes_the_bucket(server: S3Server) -> None:
    server.put(BUCKET, {"a/b/c": b"", "folder/": b""})
    assert s3.rm([f"s3://{BUCKET}/"], region=REGION, recursive=True) == 2
    assert server.client.list_buckets()["Buckets"] == []


@pytest.mark.parametrize("key", ["/a", "in/../../a"])
def test_any_key_can_be_fetched_and_deleted(server: S3Server, tmp_path: Path, key: str) -> None:
    server.put(BUCKET, {key: b"x", "a": b"another", "in/a": b"another"})
    get(f"s3://{BUCKET}/{key}", str(tmp_path / "file"))
    assert read_files(tmp_path) == {"file": b"x"}
    assert s3.rm([f"s3://{BUCKET}/{key}"], region=REGION) == 1
    assert set(server.read(BUCKET)) == {"a", "in/a"}


def test_rm_says_that_versions_are_kept(server: S3Server) -> None:
    server.put(BUCKET, {})
    server.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    server.put_object(BUCKET, "a", b"")
    events: list[Event] = []
    s3.rm([f"s3://{BUCKET}/a"], region=REGION, report=events.append)
    assert [(event.kind, event.where) for event in events] == [("warn", f"s3://{BUCKET}/")]
    assert "it keeps what was deleted" in events[0].what


def test_put_names_what_it_cannot_copy_and_deletes_nothing(server: S3Server, tmp_path: Path) -> None:
    server.put(BUCKET, {"in/old": b""})
    write_files(tmp_path / "in", {"a": b"a", "sub/b": b"b", "bell\x07": b""})
    (tmp_path / "in" / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "in" / "sub" / "fifo")
    with pytest.raises(ClusterError, match="3 of 5 files failed, the others are done:") as caught:
        s3.put([str(tmp_path / "in")], f"s3://{BUCKET}/in/", region=REGION, delete=True, report=silent)
    assert all(name in caught.value.message for name in ("/bell\x07: ", "/link: ", "/fifo: "))
    assert server.read(BUCKET) == {"in/a": b"a", "in/sub/b": b"b", "in/old": b""}


def test_only_a_file_in_the_way_fails(server: S3Server, tmp_path: Path) -> None:
    server.put(BUCKET, {"a": b"a", "b/c": b"c", "d": b"d"})
    write_files(tmp_path, {"b": b"a file", "a/x": b"in a folder"})
    with pytest.raises(ClusterError, match="2 of 3 files failed") as caught:
        get(f"s3://{BUCKET}", str(tmp_path))
    assert f"s3://{BUCKET}/a -> {tmp_path}/a: there is a folder of this name" in caught.value.message
    assert read_files(tmp_path) == {"b": b"a file", "a/x": b"in a folder", "d": b"d"}


def test_a_file_that_changes_is_not_stored(server: S3Server, tmp_path: Path) -> None:
    path = tmp_path / "x.rec"
    path.write_bytes(bytes(3 * PART_BYTES))
    watching = Watching(lambda: path.write_bytes(bytes(3 * PART_BYTES)))
    with pytest.raises(ClusterError, match="changed while it was read"):
        put(str(path), f"s3://{BUCKET}/", create_bucket=True, watch=watching.watch)
    assert server.read(BUCKET) == {}
    assert server.unfinished(BUCKET) == []


def test_an_object_that_changes_is_not_written(server: S3Server, tmp_path: Path) -> None:
    server.put(BUCKET, {"x": b"listed"})

    def watch(_transfers: Sequence[Upload | Download], /) -> Progress:
        server.client.put_object(Bucket=BUCKET, Key="x", Body=b"later!")
        return Progress()

    with pytest.raises(ClusterError, match="PreconditionFailed"):
        get(f"s3://{BUCKET}/x", str(tmp_path / "out"), watch=watch)
    assert read_files(tmp_path) == {}


@pytest.mark.parametrize(("times", "arrives"), [(2, True), (10**6, False)])
def test_cut_connections(server: S3Server, tmp_path: Path, *, times: int, arrives: bool) -> None:
    content = os.urandom(300_000)
    server.put(BUCKET, {"x.rec": content})
    cuts = Faults(cut=times)
    with cutting_proxy(server.url, cuts, after_bytes=2_000):
        if arrives:
            get(f"s3://{BUCKET}/x.rec", str(tmp_path))
        else:
            with pytest.raises(ClusterError, match=r"x\.rec: .*\(get_object\)"):
                get(f"s3://{BUCKET}/x.rec", str(tmp_path))
    assert read_files(tmp_path) == ({"x.rec": content} if arrives else {})
    assert cuts.done >= 2


def test_a_get_outlives_a_short_outage(server: S3Server, tmp_path: Path) -> None:
    server.put(BUCKET, {"x.rec": os.urandom(300_000)})
    ends_at = time.monotonic() + 1.7  # obstore's own pauses between five requests are 1.5 s at most

    def change(_: Asked, body: bytes) -> bytes:
        return body[:2_000] if time.monotonic() < ends_at else body

    with judging_proxy(server.url, change=change):
        get(f"s3://{BUCKET}/x.rec", str(tmp_path))


def test_access_denied_names_the_missing_action(server: S3Server, tmp_path: Path) -> None:
    server.put(BUCKET, {"a": b"a", "b": b"b"})
    write_files(tmp_path, {"new": b""})
    with server.caller_who_may("s3:ListBucket"):
        assert len(s3.ls(f"s3://{BUCKET}", region=REGION)) == 2
        with pytest.raises(ClusterError, match="2 of 2 files failed") as caught:
            get(f"s3://{BUCKET}/", str(tmp_path / "out"))
        assert "s3:GetObject is needed" in caught.value.message
        with pytest.raises(ClusterError, match="s3:PutObject is needed"):
            put(str(tmp_path / "new"), f"s3://{BUCKET}/")
        with pytest.raises(ClusterError, match=f"1 of 1 objects were not deleted:\n  s3://{BUCKET}/a: Access Denied"):
            s3.rm([f"s3://{BUCKET}/a"], region=REGION)
    assert server.read(BUCKET) == {"a": b"a", "b": b"b"}
    assert set(read_files(tmp_path)) == {"new"}


def test_an_empty_marker_of_a_folder_is_not_an_object(server: S3Server, tmp_path: Path) -> None:
    server.put(BUCKET, {"in/": b"", "in/a": b"a", "in/sub/": b"", "in/sub/b": b"b", "alone/": b""})
    get(f"s3://{BUCKET}/in/", str(tmp_path / "out"))
    assert read_files(tmp_path / "out") == {"a": b"a", "sub/b": b"b"}
    with pytest.raises(NotFoundError, match=f"s3://{BUCKET}/alone/: no such object or folder"):
        get(f"s3://{BUCKET}/alone/", str(tmp_path / "out"))


@pytest.mark.parametrize("source", ["in/", "in"])
def test_a_marker_with_content_is_named(server: S3Server, tmp_path: Path, source: str) -> None:
    server.put(BUCKET, {"in/": b"text", "in/a": b"a"})
    with pytest.raises(ClusterError, match="1 of 2 files failed") as caught:
        get(f"s3://{BUCKET}/{source}", str(tmp_path / "out"))
    assert f"\n  s3://{BUCKET}/in/: a file's name cannot end with a slash" in caught.value.message
    assert read_files(tmp_path / "out") == {"a": b"a"}
    first = s3.ls(f"s3://{BUCKET}/{source}", region=REGION)[0]
    assert (str(first.url), first.size_bytes) == (f"s3://{BUCKET}/in/", 4)


def test_a_bucket_is_created_only_on_request(server: S3Server, tmp_path: Path) -> None:
    write_files(tmp_path / "in", {"a": b"a"})
    words, events = ([str(tmp_path / "in")], f"s3://{BUCKET}/in/"), list[Event]()
    with pytest.raises(NotFoundError, match="bucket datasets does not exist") as caught:
        s3.put(*words, region=REGION, report=silent)
    assert "--create-bucket" in str(caught.value.hint)
    for _ in range(2):
        s3.put(*words, region=REGION, create_bucket=True, report=events.append)
    assert [(event.kind, event.where, event.what) for event in events] == [
        ("done", f"s3://{BUCKET}", "created the bucket, private to this account")
    ]
    [rule] = server.client.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert server.client.get_bucket_location(Bucket=BUCKET)["LocationConstraint"] == REGION


def test_put_needs_only_write_permission(server: S3Server, tmp_path: Path) -> None:
    """Neither to list nor to look at objects, nor to create buckets."""
    server.put(BUCKET, {})
    write_files(tmp_path / "in", {"a": b"a", "b": b"b"})
    events: list[Event] = []

    def judge(asked: Asked) -> Refusal | None:
        makes_bucket = asked.method == "PUT" and asked.path == f"/{BUCKET}" and not asked.query
        is_refused = asked.method == "HEAD" or "list-type=2" in asked.query or makes_bucket
        return Refusal(status=403, code="AccessDenied", message="no") if is_refused else None

    with judging_proxy(server.url, judge):
        s3.put([str(tmp_path / "in")], f"s3://{BUCKET}/in/", region=REGION, create_bucket=True, report=events.append)
    assert [event.kind for event in events] == ["warn"]
    assert set(server.read(BUCKET)) == {"in/a", "in/b"}
