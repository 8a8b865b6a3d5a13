"""`cluster data get` into folders that others may write to, or with links: it never writes anywhere else."""

import random
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from folders import read_files
from http_server import Asked, judging_proxy
from preloaded import Started
from project import Project
from s3_server import S3Server
from waits import until

MIB = 2**20
LARGE = random.Random(14).randbytes(10 * MIB)
FIRST_HELD = 8 * MIB
"""The second part of such an object."""


@contextmanager
def held_get(project: Project) -> Iterator[tuple[Started, set[Path], Callable[[], None]]]:
    """Yields a get to out/ that waits for the rest of an object, its temporary files, and a release function."""
    release, folder = threading.Event(), project.directory / "out"

    def hold(asked: Asked) -> None:
        if (asked.from_byte or 0) >= FIRST_HELD:
            release.wait()

    with judging_proxy(project.env["AWS_ENDPOINT_URL"], hold) as proxy:
        held = replace(project, env=project.env | {"AWS_ENDPOINT_URL": proxy.url})
        with held.following("data", "get", "s3://bucket/large", "out/") as process:
            try:
                until(lambda: process.poll() is not None or has_bytes(folder))
                assert process.poll() is None, held.messages.read_text()
                yield process, set(folder.iterdir()), release.set
            finally:
                release.set()


def has_bytes(folder: Path) -> bool:
    paths = folder.iterdir() if folder.is_dir() else ()
    return any(path.is_file() and path.read_bytes()[:MIB] == LARGE[:MIB] for path in paths)


def test_only_the_owner_can_read_a_temporary_file(project: Project, server: S3Server) -> None:
    """And another get into the folder, at the same time, does not delete it."""
    server.put("bucket", {"large": LARGE, "small": b"s"})
    with held_get(project) as (process, temporary, go_on):
        modes = [stat.S_IMODE(path.stat().st_mode) for path in temporary]
        project.run("data", "get", "s3://bucket/small", "out/")
        go_on()
        assert process.wait(60) == 0
    assert modes == [0o600]
    assert read_files(project.directory / "out") == {"large": LARGE, "small": b"s"}


@pytest.mark.parametrize(("link", "target"), [("out/sub", "missing"), ("out/sub/deep", "elsewhere")])
def test_a_folder_that_is_a_link_is_an_error(project: Project, server: S3Server, link: str, target: str) -> None:
    server.put("bucket", {"in/a": b"a", "in/sub/deep/b": b"b", "in/sub/deep/er/c": b"c"})
    (project.directory / "elsewhere").mkdir()
    path = project.directory / link
    path.parent.mkdir(parents=True)
    path.symlink_to(project.directory / target)
    for more in ([], ["--dry-run"], ["--delete", "--yes"]):
        output = project.run("data", "get", *more, "s3://bucket/in/", "out", code=1).stderr
        assert f"error: {link} is a symbolic link: get writes through no link below out" in output
        assert "remove the link" in output.partition("try: ")[2]
    assert read_files(project.directory / "out") == read_files(project.directory / "elsewhere") == {}
    assert not (project.directory / "missing").exists()


def test_the_destination_may_be_a_link(project: Project, server: S3Server) -> None:
    server.put("bucket", {"in/a": b"a", "in/sub/b": b"b"})
    victim = project.directory / "victim"
    victim.write_bytes(b"precious")
    (project.directory / "disk" / "real").mkdir(parents=True)
    (project.directory / "out").symlink_to("disk")
    (project.directory / "disk" / "real" / "a").symlink_to(victim)
    project.run("data", "get", "s3://bucket/in/", "out/real/")
    assert read_files(project.directory / "disk") == {"real/a": b"a", "real/sub/b": b"b"}
    project.run("data", "get", "s3://bucket/in/a", "out/new")
    assert (project.directory / "disk" / "new").read_bytes() == b"a"
    assert victim.read_bytes() == b"precious"


def test_ctrl_c_while_s3_does_not_answer(project: Project, server: S3Server) -> None:
    server.put("bucket", {"large": LARGE})
    with held_get(project) as (process, _, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    hint = "to copy what is missing, run again: cluster data get s3://bucket/large out/"
    assert project.messages.read_text() == f"\nerror: interrupted\n  try: {hint}\n"
