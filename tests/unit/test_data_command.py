"""`cluster data ...` as it is typed, against moto's S3."""

import json
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from project import CLUSTER, Project
from s3_server import S3Server, serve_s3


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        with serve_s3() as server:
            yield server


@pytest.fixture
def project(server: S3Server, tmp_path: Path) -> Iterator[Project]:
    env = {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "HOME": str(tmp_path),
    }
    project = Project(tmp_path, env)
    project.write('name = "x"\ncloud = "aws"\n')
    yield project
    server.reset()


def test_a_dataset_goes_to_s3_and_back(project: Project) -> None:
    written = project.run("data", "demo", "digits")
    assert "1500 images to train with and 297 to validate with" in written.stderr
    said = project.run("data", "put", "--create-bucket", "digits/", "s3://bucket/digits/").stderr
    assert re.search(r"put 9 files, 2\.\d MB in \d+\.\d s \(.*\) to s3://bucket/digits/", said)
    assert "\x1b" not in said
    listed = project.run("data", "ls", "s3://bucket/digits").stdout.splitlines()
    assert [line.split()[-1].removeprefix("s3://bucket/digits/") for line in listed] == [
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "train/",
        "val/",
    ]
    assert re.fullmatch(r" +305  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  s3://.*", listed[1])
    assert "got 9 files" in project.run("data", "get", "s3://bucket/digits", "back").stderr
    compared = subprocess.run(["diff", "-r", "digits", "back"], cwd=project.directory, check=False)
    assert compared.returncode == 0
    assert project.run("data", "rm", "-r", "s3://bucket/digits/train").stderr == "deleted 4 objects\n"
    assert project.run("data", "rm", "-r", "--yes", "s3://bucket").stderr == "deleted 5 objects\n"
    assert "s3://bucket/" not in project.run("data", "ls").stdout


def test_ls_as_json(project: Project, server: S3Server) -> None:
    server.put("bucket", {"a/b": b"xyz", "c": b""})
    assert json.loads(project.run("data", "ls", "--json").stdout) == [{"type": "bucket", "url": "s3://bucket/"}]
    top = json.loads(project.run("data", "ls", "--json", "s3://bucket").stdout)
    assert [(entry["type"], entry["url"]) for entry in top] == [
        ("folder", "s3://bucket/a/"),
        ("object", "s3://bucket/c"),
    ]
    (inner,) = json.loads(project.run("data", "ls", "--json", "-r", "s3://bucket/a").stdout)
    assert inner.pop("modified").endswith("+00:00")
    assert inner == {"type": "object", "url": "s3://bucket/a/b", "size_bytes": 3}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["put", "cluster.toml"], 2, ("a source and a destination are needed", "cluster data put SOURCE")),
        (["get", "s3://bucket/x"], 2, ("a source and a destination are needed", "cluster data get")),
        (["put", "cluster.toml", "elsewhere"], 2, ("put copies from this machine to S3", "cluster data get for")),
        (["put", "s3://bucket/a", "s3://bucket/b"], 2, ("put copies from this machine to S3", "cluster data get for")),
        (["get", "cluster.toml", "s3://bucket/"], 2, ("get copies from S3 to this machine", "cluster data put for")),
        (["put", "cluster.toml", "s3://Bucket/"], 2, ("not a bucket's name", "s3://BUCKET/FOLDER/")),
        (["put", "cluster.toml", "s3://bucket/../x"], 2, ('a part of the key is empty, "." or ".."', None)),
        (["put", "nope", "s3://bucket/"], 1, ("nope: no such file", None)),
        (["put", "*.nope", "s3://bucket/"], 1, ("*.nope: no file matches", None)),
        (["put", "cluster.toml", "s3://nope-bucket/"], 1, ("bucket nope-bucket does not exist", "--create-bucket")),
        (["get", "s3://bucket/nope", "."], 1, ("no such object or folder", "cluster data ls s3://bucket/")),
        (["ls", "s3://nope-bucket"], 1, ("bucket nope-bucket does not exist", "cluster data ls")),
        (["ls", "bucket"], 2, ("bucket: not an S3 URL", "s3://BUCKET/FOLDER/")),
        (["rm", "s3://bucket"], 2, ("is a whole bucket, nothing was deleted", "--recursive")),
        (["rm", "-r", "s3://bucket"], 2, ("Without a terminal this needs --yes", None)),
        (["rm", "s3://bucket/nope"], 1, ("no such object or folder", "cluster data ls")),
    ],
)
def test_what_cannot_be_is_said_plainly(
    project: Project, server: S3Server, words: list[str], code: int, message: tuple[str, str | None]
) -> None:
    said, hint = message
    server.put("bucket", {"there": b""})
    stderr = project.run("data", *words, code=code).stderr
    assert said in stderr
    assert hint is None or hint in stderr.partition("try: ")[2]
    assert server.read("bucket") == {"there": b""}


def test_a_failed_file_makes_the_command_fail(project: Project, server: S3Server) -> None:
    server.put("bucket", {"a": b"1", "a.rec/x": b"2"})
    (project.directory / "out" / "a").mkdir(parents=True)
    stderr = project.run("data", "get", "s3://bucket", "out", code=1).stderr
    assert (
        "1 of 2 files failed, the others are done:\n  s3://bucket/a -> out/a: there is a folder of this name" in stderr
    )
    assert (project.directory / "out" / "a.rec" / "x").read_bytes() == b"2"


def test_a_terminal_sees_a_bar_that_goes_away(project: Project, server: S3Server) -> None:
    server.put("bucket", {"x": bytes(3_000_000)})
    seen = on_a_terminal([CLUSTER, "data", "get", "s3://bucket/x", "x"], project)
    bar = re.search(r"[01]/1 files", seen)  # which of them it shows is a matter of time
    assert bar, seen
    assert bar.start() < seen.index("got 1 file, 3.0 MB")


def on_a_terminal(command: list[str], project: Project) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, cwd=project.directory, env=project.environment() | {"TERM": "xterm"}, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # Linux's way to say that the terminal's last user is gone
                break
            if not chunk:
                break
            seen += chunk
    os.close(ours)
    assert process.returncode == 0, seen
    return seen.decode()
