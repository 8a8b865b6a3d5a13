"""A capsule's file: what was changed is named, and nothing of a hostile one leaves its temporary folder."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bootstrap.transfer.tree import TreeFile, file_of_bytes, make_tree
from cluster.capsule.archive import CAPSULE, FILES, MANIFEST, Ingredients, encode, open_capsule, write
from cluster.report import write_report
from foundation.errors import ClusterError
from job_records import make_record

Members = list[tuple[tarfile.TarInfo, bytes]]
OWN = (file_of_bytes("train.py", b"print(1)\n"), file_of_bytes("run.sh", b"#!/bin/sh\n"))
LARGE = 2 << 20


def make_capsule(path: Path, own: tuple[TreeFile, ...] = OWN, folders: tuple[str, ...] = ("empty",)) -> Path:
    spec = replace(make_record(1).spec, project=make_tree(own, folders).digest)
    files = [file_of_bytes(CAPSULE, encode(Ingredients(spec=spec))), file_of_bytes("log.txt", b"Epoch[0]\n")]
    files += [replace(file, path=f"{FILES}/{file.path}") for file in own]
    write(path, files, ["data: gone"], [f"{FILES}/{name}" for name in folders])
    return path


def change(path: Path, how: Callable[[Members], None]) -> None:
    with tarfile.open(path) as archive:
        members = [(one, archive.extractfile(one).read() if one.isreg() else b"") for one in archive]
    how(members)
    with tarfile.open(path, "w:gz") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def edit(name: str, old: bytes, new: bytes) -> Callable[[Members], None]:
    def how(members: Members) -> None:
        members[:] = [(one, data.replace(old, new) if one.name == name else data) for one, data in members]

    return how


def add(name: str, *, kind: bytes = tarfile.REGTYPE, data: bytes = b"x") -> Callable[[Members], None]:
    def how(members: Members) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        members.append((member, data if kind == tarfile.REGTYPE else b""))

    return how


def add_sparse(members: Members) -> None:
    """A file of 1 TiB that has no data, as GNU tar 1.0 describes it."""
    member = tarfile.TarInfo("files/sparse")
    names = {"major": "1", "minor": "0", "name": member.name, "realsize": str(1 << 40)}
    member.pax_headers = {f"GNU.sparse.{name}": value for name, value in names.items()}
    members.append((member, f"1\n{1 << 40}\n0\n".encode().ljust(512, b"\0")))


def remove(name: str) -> Callable[[Members], None]:
    def how(members: Members) -> None:
        members[:] = [pair for pair in members if pair[0].name != name]

    return how


def make_executable(members: Members) -> None:
    next(one for one, _ in members if one.name == "files/train.py").mode = 0o755


def test_a_capsule_has_what_was_written(tmp_path: Path) -> None:
    with open_capsule(make_capsule(tmp_path / "a.capsule")) as (ingredients, manifest, folder):
        assert ingredients.spec.name == "train_mnist"
        assert manifest.missing == ("data: gone",)
        found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
        assert found == ["empty", "run.sh", "train.py"]
        assert (folder / "run.sh").stat().st_mode & 0o777 == 0o755
    assert not folder.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a.capsule"]


@pytest.mark.parametrize(
    ("how", "named"),
    [
        (edit("files/train.py", b"1", b"2"), "files/train.py: changed"),
        (remove("files/run.sh"), "files/run.sh: missing"),
        (remove(MANIFEST), MANIFEST),
        (add("files/more.py"), "files/more.py: not in manifest.json"),
        (make_executable, "files: not what the job ran"),
        (add("files/new", kind=tarfile.DIRTYPE), "files: not what the job ran"),
        (edit(MANIFEST, b'"format": 1', b'"format": 2'), r"\$\.format"),
        (add("files/../../out.py"), "files/../../out.py"),
        (add("files/link", kind=tarfile.SYMTYPE), "files/link"),
        (add("files/train.py"), "files/train.py"),  # twice
        (add("files/bomb", data=bytes(LARGE)), "far too large"),
        (add_sparse, "files/sparse.*a sparse file"),
    ],
)
def test_what_was_changed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[Members], None], named: str
) -> None:
    monkeypatch.setattr("cluster.capsule.archive.ALLOWED_BYTES", LARGE // 2)
    path = make_capsule(tmp_path / "a.capsule")
    change(path, how)
    with pytest.raises(ClusterError, match=named), open_capsule(path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["a.capsule"]


@pytest.mark.parametrize("data", [b"", b"no archive", gzip.compress(b"no archive", mtime=0)])
def test_another_file_is_no_capsule(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.capsule"
    path.write_bytes(data)
    with pytest.raises(ClusterError, match=r"no capsule.*: [^:]*[a-z]") as raised, open_capsule(path):
        pass
    assert "None" not in raised.value.message


def test_a_device_or_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    """As root, `-o /dev/null` would leave a file there."""
    pipe = tmp_path / "null"
    os.mkfifo(pipe)
    for write_to in (make_capsule, lambda path: write_report(path, [])):
        with pytest.raises((ClusterError, OSError), match="not a regular file"):
            write_to(pipe)
    assert pipe.is_fifo()
