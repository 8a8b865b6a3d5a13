"""Objects whose names end with a slash: without content they stand for a folder, with content they are objects."""

from pathlib import Path

import pytest

from project import Project
from s3_server import S3Server, project, server, shared_server

__all__ = ["project", "server", "shared_server"]


def read(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_marker_without_content_is_no_object(project: Project, server: S3Server) -> None:
    server.put("bucket", {"in/": b"", "in/a": b"a", "in/sub/": b"", "in/sub/b": b"b", "alone/": b""})
    project.run("data", "get", "s3://bucket/in/", "out")
    assert read(project.directory / "out") == {"a": b"a", "sub/b": b"b"}
    assert "s3://bucket/alone/: no such object or folder" in project.run(
        "data", "get", "s3://bucket/alone/", "out", code=1
    ).stderr  # fmt: skip


@pytest.mark.parametrize("objects", [{"in/": b"text"}, {"in/": b"text", "in/a": b"a"}, {"in/": b"text", "in/a": b""}])
@pytest.mark.parametrize("source", ["s3://bucket/in/", "s3://bucket/in"])
def test_a_folders_own_marker_with_content_is_named(
    project: Project, server: S3Server, objects: dict[str, bytes], source: str
) -> None:
    server.put("bucket", objects)
    said = project.run("data", "get", source, "out", code=1).stderr
    assert "these names cannot be files below the destination, nothing was written:\n  s3://bucket/in/\n" in said
    assert not (project.directory / "out").exists()
    assert project.run("data", "ls", source).stdout.splitlines()[0].split()[::3] == ["4", "s3://bucket/in/"]
    assert project.run("data", "du", source).stdout.splitlines()[-1].split()[1] == str(len(objects))


def test_the_others_are_got_by_a_glob(project: Project, server: S3Server) -> None:
    server.put("bucket", {"in/": b"text", "in/a": b"a", "in/sub/b": b"b"})
    project.run("data", "get", "s3://bucket/in/*", "out")
    assert read(project.directory / "out") == {"a": b"a", "sub/b": b"b"}


def test_a_marker_with_content_below_the_folder_is_named(project: Project, server: S3Server) -> None:
    server.put("bucket", {"in/a": b"a", "in/sub/": b"text", "in/sub/b": b"b"})
    said = project.run("data", "get", "s3://bucket/in/", "out", code=1).stderr
    assert "these names cannot be files below the destination, nothing was written:\n  s3://bucket/in/sub/\n" in said


@pytest.mark.parametrize("size_bytes", [10, 3_000_000, 20_000_000])
def test_a_marker_with_content_and_nothing_below_is_named(project: Project, server: S3Server, size_bytes: int) -> None:
    server.put("bucket", {"in/a": b"a", "in/sub/": bytes(size_bytes)})
    said = project.run("data", "get", "s3://bucket/in/", "out", code=1).stderr
    assert "s3://bucket/in/sub/" in said
    assert "no such object" not in said
    assert read(project.directory / "out") == {"a": b"a"}


def test_a_marker_with_content_is_deleted(project: Project, server: S3Server) -> None:
    server.put("bucket", {"in/": b"text", "in/sub/": b"text", "in/a": b"a", "kept": b"", "other/sub/": b"text"})
    (project.directory / "in").mkdir()
    (project.directory / "in" / "a").write_bytes(b"a")
    project.run("data", "put", "--delete", "--yes", "in", "s3://bucket/in/")
    assert server.read("bucket").keys() == {"in/a", "kept", "other/sub/"}
    assert project.run("data", "rm", "-r", "s3://bucket/other").stderr == "deleted 1 object\n"
    assert server.read("bucket").keys() == {"in/a", "kept"}
