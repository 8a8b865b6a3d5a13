"""Names in S3, and which file goes where, without a network."""

from pathlib import Path

import pytest

from folders import write_files
from foundation.errors import ClusterError, UsageError
from train.s3.sources import find_files
from train.s3.transfer_plan import FoundObject, plan_get, plan_put
from train.s3.url import S3Url, compile_glob, parse_url

TREE = ("a.rec", "b.rec", "sub/c.rec", "sub/deep/d.rec", "sub2/a.rec")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bucket/key", "not an S3 URL"),
        ("s3://ab", "not a bucket name"),
        ("s3://" + "a" * 64, "not a bucket name"),
        ("s3://bucket@host/", "not a bucket name"),
        ("s3://bucket/../x", "a part of the key"),
        ("s3://bucket/" + "ü" * 513, "S3 allows 1024"),
    ],
)
def test_invalid_urls(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_url(text)


def make_tree(folder: Path, names: tuple[str, ...] = TREE) -> None:
    write_files(folder, {name: name.encode() for name in names})


@pytest.mark.parametrize(
    ("sources", "destination", "keys"),
    [
        (["data/a.rec"], "s3://bucket/x/", ["x/a.rec"]),
        (["data/a.rec"], "s3://bucket/x", ["x"]),
        (["data"], "s3://bucket/x", [f"x/{name}" for name in TREE]),
        (["data/"], "s3://bucket", list(TREE)),
        (["data/sub", "data/sub2"], "s3://bucket/x", ["x/sub/c.rec", "x/sub/deep/d.rec", "x/sub2/a.rec"]),
        (["data/*.rec"], "s3://bucket/x", ["x/a.rec", "x/b.rec"]),
        (["data/**"], "s3://bucket", list(TREE)),
    ],
)
def test_put_names_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[str], destination: str, keys: list[str]
) -> None:
    make_tree(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    plan, refused = plan_put(find_files(sources), parse_url(destination))
    assert not refused
    assert [upload.destination.key for upload in plan] == keys
    assert all(upload.source.stat().st_size == upload.size_bytes for upload in plan)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["nope"], "nope: no such file"),
        (["data/*.txt"], r"data/\*\.txt: no file matches"),
        (["data/a.rec/"], "not a folder"),
        (["empty"], "has no files"),
    ],
)
def test_sources_that_cannot_be_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[str], message: str
) -> None:
    make_tree(tmp_path / "data")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClusterError, match=message):
        find_files(sources)


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    make_tree(tmp_path / "data", ("a.rec",))
    make_tree(tmp_path / "elsewhere", ("b.rec",))
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "again").symlink_to("linked")
    (tmp_path / "data" / "circle").symlink_to(tmp_path / "data")
    (tmp_path / "elsewhere" / "circle").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "link.rec").symlink_to("a.rec")
    names = ["a.rec", "again/b.rec", "link.rec", "linked/b.rec"]
    assert sorted(file.name for file in find_files([str(tmp_path / "data")])) == names


def test_two_files_for_one_object_are_an_error(tmp_path: Path) -> None:
    make_tree(tmp_path)
    with pytest.raises(UsageError, match=r"a\.rec and .*sub2/a\.rec would both become s3://b/a\.rec"):
        plan_put(find_files([str(tmp_path / "a.rec"), str(tmp_path / "sub2") + "/"]), S3Url(bucket="b"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("loop", "loop: cannot be read: Too many levels of symbolic links"),
        ("\udcff", "\udcff: the name is not UTF-8"),
        ("x" * 250, "the key has 1231 bytes, S3 allows 1024"),
    ],
)
def test_files_that_cannot_be_put(tmp_path: Path, name: str, message: str) -> None:
    """They are named, and the others are copied."""
    make_tree(tmp_path, ("a.rec",))
    path = tmp_path / name
    if name == "loop":
        path.symlink_to("loop")
    else:
        path.touch()
    folder = "y" * 980 + "/" if name.startswith("x") else ""
    planned, (refused,) = plan_put(find_files([str(tmp_path)]), S3Url(bucket="b", key=folder))
    assert [upload.source.name for upload in planned] == ["a.rec"]
    assert message in refused


def found_objects(*names: str, alone: bool = False) -> list[FoundObject]:
    return [
        FoundObject(url=S3Url(bucket="b", key=f"in/{name}"), name=name, size_bytes=1, etag='"e"', alone=alone)
        for name in names
    ]


@pytest.mark.parametrize(
    ("alone", "destination", "folder_exists", "path"),
    [
        (True, "out", False, "out"),
        (True, "out", True, "out/a.rec"),
        (True, "out/", False, "out/a.rec"),
        (False, "out", False, "out/a.rec"),
    ],
)
def test_get_names_files(alone: bool, destination: str, folder_exists: bool, path: str) -> None:  # noqa: FBT001
    plan, _ = plan_get(found_objects("a.rec", alone=alone), destination, folder_exists=folder_exists)
    assert [item.destination for item in plan] == [Path(path)]


def test_get_rejects_colliding_names() -> None:
    with pytest.raises(UsageError, match="would both become"):
        plan_get([*found_objects("a"), FoundObject(
            url=S3Url(bucket="b", key="other/a"), name="a", size_bytes=1, etag="", alone=False)],
            "out", folder_exists=False)  # fmt: skip


def test_objects_that_cannot_be_files(tmp_path: Path) -> None:
    objects = found_objects("a", "a/b", "a/b/c", "../x", "/x", "", "d/e")
    planned, refused = plan_get(objects, "out", folder_exists=False)
    assert [str(item.destination) for item in planned] == ["out/a", "out/a/b", "out/a/b/c", "out/d/e"]
    assert [text.partition(": ")[0] for text in refused] == [
        "s3://b/in/../x", "s3://b/in//x", "s3://b/in/",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [("a?c", ["abc"], ["ac", "a/c", "abbc"]), ("**/x", ["x", "a/x", "a/b/x"], ["ax", "a/bx"])],
)
def test_globs(pattern: str, matches: list[str], others: list[str]) -> None:
    compiled = compile_glob(pattern)
    assert [key for key in matches + others if compiled.fullmatch(key)] == matches
