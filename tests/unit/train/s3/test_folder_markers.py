"""Objects whose names end with a slash: folder markers if they are empty, otherwise objects."""

from pathlib import Path

import pytest

from folders import read_files
from foundation.errors import ClusterError, NotFoundError
from s3_server import REGION, S3Server
from train.s3 import operations as s3


def get(source: str, folder: Path) -> dict[str, bytes]:
    s3.get([source], str(folder), region=REGION)
    return read_files(folder)


def test_an_empty_marker_is_not_an_object(server: S3Server, tmp_path: Path) -> None:
    server.put("bucket", {"in/": b"", "in/a": b"a", "in/sub/": b"", "in/sub/b": b"b", "alone/": b""})
    assert get("s3://bucket/in/", tmp_path / "out") == {"a": b"a", "sub/b": b"b"}
    with pytest.raises(NotFoundError, match="s3://bucket/alone/: no such object or folder"):
        get("s3://bucket/alone/", tmp_path / "out")


@pytest.mark.parametrize("other", [b"a", b""])
@pytest.mark.parametrize("source", ["s3://bucket/in/", "s3://bucket/in"])
def test_a_marker_with_content_is_named(server: S3Server, tmp_path: Path, other: bytes, source: str) -> None:
    server.put("bucket", {"in/": b"text", "in/a": other})
    with pytest.raises(ClusterError, match="1 of 2 files failed") as caught:
        get(source, tmp_path / "out")
    assert "\n  s3://bucket/in/: a file's name cannot end with a slash" in caught.value.message
    assert read_files(tmp_path / "out") == {"a": other}
    first = s3.ls(source, region=REGION)[0]
    assert (str(first.url), first.size_bytes) == ("s3://bucket/in/", 4)
