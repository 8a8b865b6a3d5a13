"""The real `cluster data ...` commands, against moto's S3."""

import json
import random
import re
import subprocess
from pathlib import Path

import pytest

from cluster.views.data import TransferProgress
from folders import read_files, write_files
from project import Project
from s3_server import S3Server
from train.s3.transfer_plan import Upload
from train.s3.url import S3Url


def test_a_dataset_goes_to_s3_and_back(project: Project) -> None:
    written = project.run("data", "demo", "digits")
    assert "1500 images to train with and 297 to validate with" in written.stderr
    output = project.run("data", "put", "--create-bucket", "digits/", "s3://bucket/digits/").stderr
    assert re.search(r"put 9 files, 2\.\d MB in \d+\.\d s \(.*\) to s3://bucket/digits/", output)
    assert "\x1b" not in output
    heading, *listed = project.run("data", "ls", "s3://bucket/digits").stdout.splitlines()
    assert heading.split() == ["SIZE", "MODIFIED", "URL"]
    assert [line.split()[-1].removeprefix("s3://bucket/digits/") for line in listed][3:] == [
        "train-labels-idx1-ubyte", "train/", "val/",
    ]  # fmt: skip
    assert re.fullmatch(r"305 bytes  \d{4}-\d\d-\d\d \d\d:\d\d [A-Z]+ +s3://.*", listed[1])
    assert "got 9 files" in project.run("data", "get", "s3://bucket/digits", "back").stderr
    compared = subprocess.run(["diff", "-r", "digits", "back"], cwd=project.directory, check=False)
    assert compared.returncode == 0
    assert project.run("data", "rm", "-r", "s3://bucket/digits/train").stderr == "deleted 4 objects\n"
    assert project.run("data", "rm", "-r", "--yes", "s3://bucket").stderr == "deleted 5 objects\n"
    assert "s3://bucket/" not in project.run("data", "ls").stdout


def test_ls_as_json(project: Project, server: S3Server) -> None:
    server.put("bucket", {"a/b": b"xyz", "c": b""})
    assert json.loads(project.run("data", "ls", "--json").stdout) == [{"kind": "bucket", "url": "s3://bucket/"}]
    top = json.loads(project.run("data", "ls", "--json", "s3://bucket").stdout)
    assert [(entry["kind"], entry["url"]) for entry in top] == [
        ("folder", "s3://bucket/a/"),
        ("object", "s3://bucket/c"),
    ]
    (inner,) = json.loads(project.run("data", "ls", "--json", "-r", "s3://bucket/a").stdout)
    assert inner.pop("modified_at").endswith("+00:00")
    assert inner == {"kind": "object", "url": "s3://bucket/a/b", "size_bytes": 3}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["put", "cluster.toml", "elsewhere"], 2, ("put copies from this machine to S3", "cluster data get for")),
        (["get", "s3://bucket/nope", "."], 1, ("no such object or folder", "cluster data ls s3://bucket/")),
        (["ls", "s3://nope-bucket"], 1, ("bucket nope-bucket does not exist", "cluster data ls")),
        (["demo", "s3:/bucket/d"], 2, ("s3:/bucket/d: not an S3 URL", "s3://BUCKET/FOLDER/")),
        (["rm", "-r", "s3://bucket"], 2, ("without a terminal, this needs --yes", None)),
    ],
)
def test_errors_and_hints(
    project: Project, server: S3Server, words: list[str], code: int, message: tuple[str, str | None]
) -> None:
    text, hint = message
    server.put("bucket", {"there": b""})
    stderr = project.run("data", *words, code=code).stderr
    assert text in stderr
    assert hint is None or hint in stderr.partition("try: ")[2]
    assert server.read("bucket") == {"there": b""}


def test_dry_run(project: Project, server: S3Server) -> None:
    server.put("bucket", {"old": b"", "same": b"s"})
    write_files(project.directory / "in", {"new": b"n", "same": b"s", "skip.log": b""})
    words = ("data", "put", "--delete", "--exclude", "*.log", "in", "s3://bucket/")
    done = project.run(*words, "--dry-run")
    assert done.stdout == "copy    in/new -> s3://bucket/new\ndelete  s3://bucket/old\n"
    assert "1 to copy, 1 unchanged, 1 to delete (dry run)" in done.stderr
    assert "without a terminal, this needs --yes" in project.run(*words, code=2).stderr
    assert server.read("bucket") == {"old": b"", "same": b"s"}
    output = project.run(*words, "--yes").stderr
    assert "put 1 file" in output
    assert "; 1 file unchanged; 1 file deleted" in output
    assert server.read("bucket") == {"new": b"n", "same": b"s"}
    (project.directory / "in" / "link").symlink_to("nowhere")
    done = project.run(*words, "--dry-run", code=1)
    assert done.stdout == "refuse  in/link: a link to nothing\n"
    assert "0 to copy, 1 that cannot be copied, 2 unchanged, 0 to delete (dry run)" in done.stderr


def test_secrets_are_neither_shown_nor_stored(project: Project, server: S3Server) -> None:
    server.put("bucket", {})
    (project.directory / "x").write_bytes(bytes(9_000_000))
    canary = "canary-0123456789-secret"
    project.env["AWS_SECRET_ACCESS_KEY"] = canary
    done = project.run("data", "put", "x", "s3://bucket/")
    refused = project.run("data", "put", "x", "s3://nope-bucket/", code=1)
    kept = [path.read_bytes() for path in (project.directory / "state").rglob("*") if path.is_file()]
    assert not any(canary in text for text in (done.stdout, done.stderr, refused.stdout, refused.stderr))
    assert not any(canary.encode() in content for content in kept)


def test_a_long_copy_prints_lines() -> None:
    messages: list[str] = []
    now = [0.0]
    progress = TransferProgress(None, messages.append, clock=lambda: now[0])
    url = S3Url(bucket="b", key="k")
    upload = Upload(source=Path("x"), destination=url, size_bytes=1_000_000)
    progress.watch([upload, upload])
    progress.moved(0)  # happens after many retries of a large file's HEAD request
    for now[0], moved in ((9.0, 100_000), (10.0, 100_000), (20.0, 0), (50.0, 800_000)):
        progress.moved(moved)
    assert messages == [
        "0/2 files, 200.0 kB of 2.0 MB, 20.0 kB/s, 0:01:30 left",
        "0/2 files, 1.0 MB of 2.0 MB, 20.0 kB/s, 0:00:50 left",
    ]


def test_objects_without_a_checksum_are_named_once(project: Project, server: S3Server) -> None:
    sizes = [1000, *[2**20 + 1] * 2, 9 * 2**20, 2**20 + 1]
    contents = {f"{number}.rec": random.Random(number).randbytes(size) for number, size in enumerate(sizes)}
    server.put("bucket", contents)
    for name, content in contents.items():
        if name != "0.rec":
            server.put_without_checksum("bucket", name, content)
    messages = project.run("data", "get", "s3://bucket/", "back").stderr.splitlines()
    assert read_files(project.directory / "back") == contents
    warned = [line for line in messages if "checksum" in line]
    assert len(warned) == 1
    assert warned[0].endswith(
        "S3 has no usable checksum for 4 objects; only the size was compared: "
        "s3://bucket/1.rec, s3://bucket/2.rec, s3://bucket/3.rec and 1 more"
    )
    # There is no warning about objects with a checksum.
    assert "checksum" not in project.run("data", "get", "s3://bucket/0.rec", "third").stderr


def test_fetch(project: Project) -> None:
    output = project.run("data", "fetch", "digits", "here", "--shards", "2").stderr
    assert "1500 images to train with and 297 to validate with: 7 files, 2." in output
    assert len(read_files(project.directory / "here")) == 7
    assert not list(project.directory.rglob(".cluster-fetch*"))
    project.run("data", "fetch", "digits", "here", "--shards", "2")
    (project.directory / "here/train/part-00001.rec").write_bytes(b"own")
    output = project.run("data", "fetch", "digits", "here", "--shards", "2", code=2).stderr
    assert "here has other files, which digits would replace: train/part-00001.rec" in output
    # MXNet would read both: the rest of the old dataset, and the new one.
    more = project.run("data", "fetch", "digits", "here", "--shards", "1", code=2).stderr
    assert "here has records that digits would be mixed with: train/part-00001.rec" in more
    assert "is not one of" in project.run("data", "fetch", "imagenet", "here", code=2).stderr
    assert "cluster data put --create-bucket digits/ s3://b/d/" in " ".join(
        project.run("data", "fetch", "digits", "s3://b/d/", code=2).stderr.split()
    )
