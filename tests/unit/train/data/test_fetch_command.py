"""`cluster data fetch` as it is typed, of what needs no network."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from project import Project
from s3_server import S3Server, serve_s3

NAMES = {
    *(f"train/part-0000{number}.rec" for number in range(2)),
    "val/part-00000.rec",
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        with serve_s3() as server:
            yield server
            server.reset()


@pytest.fixture
def project(server: S3Server, tmp_path: Path) -> Project:
    env = {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "HOME": str(tmp_path / "home"),
    }
    project = Project(tmp_path, env)
    project.write('name = "x"\ncloud = "aws"\n')
    return project


def test_a_dataset_comes_by_its_name_to_a_folder_or_to_s3(project: Project, server: S3Server) -> None:
    said = project.run("data", "fetch", "digits", "here", "--shards", "2").stderr
    assert "1500 images to train with and 297 to validate with: 7 files, 2." in said
    folder = project.directory / "here"
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    assert files.keys() == NAMES
    words = ("data", "fetch", "digits", "s3://bucket/digits", "--shards", "2")
    refused = project.run(*words, code=1)
    assert "--create-bucket" in refused.stderr
    assert "put 7 files" in project.run(*words, "--create-bucket").stderr
    assert server.read("bucket") == {f"digits/{name}": path.read_bytes() for name, path in files.items()}
    assert not list((project.directory / "home").rglob(".cluster-fetch*"))
    # MXNet would read both: what would be left of the earlier one, and the other in its place.
    more = project.run("data", "fetch", "digits", "here", "--shards", "1", code=2).stderr
    assert "here has records that digits would be mixed with: train/part-00001.rec" in more
    more = project.run("data", "fetch", "digits", "s3://bucket/digits/", "--shards", "1", code=2).stderr
    assert "train/part-00001.rec" in more


def test_what_cannot_be_is_said(project: Project) -> None:
    assert "is not one of" in project.run("data", "fetch", "imagenet", "here", code=2).stderr
    assert "not s3://" in project.run("data", "fetch", "digits", "here", "--create-bucket", code=2).stderr
