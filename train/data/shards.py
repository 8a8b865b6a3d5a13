"""Shards of records: writes them to a folder on this machine or in S3, and splits them differently.

Each file appears in the folder only when it is complete; in a folder on this machine, all of them appear at the end.
Existing shards are replaced only with --replace.
"""

import hashlib
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self

from msgspec import Struct

from foundation.errors import ClusterError, NotFoundError, UsageError
from foundation.progress import Report
from foundation.thread_pool import bounded_pool
from foundation.user_folders import cache_folder
from mxnet_cluster.recordio import scan_records
from mxnet_cluster.sources import INDEX_FOLDER, Shard, Sources
from train.data.work import move_files, work_folder
from train.s3 import operations
from train.s3.url import S3Url, is_s3, parse_url

LABELS = f"{INDEX_FOLDER}/labels.txt"
_OURS = re.compile(rf"part-\d{{5,}}\.rec|{INDEX_FOLDER}/(part-\d{{5,}}\.(idx|lst)|labels\.txt)")
_WORK = ".cluster-pack"


class Destination(Struct, frozen=True, kw_only=True):
    """Receives finished files.

    work: a folder on this machine for unfinished files. deliver: moves finished files, which are in it, to their names
    at the destination, in this order; may wait for earlier files.
    """

    work: Path
    deliver: Callable[[Mapping[str, Path]], None]


@contextmanager
def open_destination(
    destination: str, *, folders: Sequence[str], replace: bool, region: str, create_bucket: bool, report: Report
) -> Iterator[Destination]:
    """A destination for shards whose names begin with one of `folders`; complete when the block ends without an error.

    Raises UsageError, before it changes anything, if the destination has finished shards, unless `replace`, or other
    files, which MXNet would read as records; OSError, ClusterError if another run writes to it.
    """
    if not destination:
        raise UsageError("the destination is empty")
    try:
        if not is_s3(destination):
            with _open_local(Path(destination), folders, replace=replace) as local:
                yield local
            return
        folder = str(parse_url(destination).as_folder())

        def put(source: Path) -> None:
            operations.put([f"{source}/"], folder, region=region, create_bucket=create_bucket, report=report)

        with _open_remote(folder, folders, put, region=region, replace=replace) as remote:
            yield remote
    except BlockingIOError:
        raise ClusterError(f"{destination}: another command writes shards there", hint="wait until it ends") from None


def _find_old(names: Collection[str], folders: Sequence[str], *, where: str, replace: bool) -> tuple[str, ...]:
    """The existing shards to delete among the names below a destination.

    Raises UsageError for finished shards, or the labels of others, unless `replace`; also for other files next to them.
    """
    below = [
        (folder, name.removeprefix(folder)) for name in sorted(names) for folder in folders if name.startswith(folder)
    ]
    others = [folder + rest for folder, rest in below if rest and "/" not in rest and not _OURS.fullmatch(rest)]
    if others:
        raise UsageError(
            f"{where} has other files ({', '.join(others[:3])}): MXNet reads every file of a folder as records",
            hint="choose an empty folder",
        )
    old = tuple(folder + rest for folder, rest in below if _OURS.fullmatch(rest))
    first = next(iter(old), LABELS if LABELS in names else None)
    if first is not None and not replace:
        raise UsageError(f"{where} has shards already ({first})", hint="choose another folder, or add --replace")
    return old


@contextmanager
def _open_local(folder: Path, folders: Sequence[str], *, replace: bool) -> Iterator[Destination]:
    patterns = [LABELS, *(pattern for below in folders for pattern in (f"{below}*", f"{below}{INDEX_FOLDER}/*"))]
    found = [path for pattern in patterns for path in folder.glob(pattern) if not path.is_dir()]
    names = {path.relative_to(folder).as_posix() for path in found}
    # A work folder that is there is of a run that was killed, perhaps while it moved its files.
    work = folder / _WORK
    old = _find_old(names, folders, where=str(folder), replace=replace or work.exists())
    with work_folder(work):
        finished: dict[str, Path] = {}

        def deliver(files: Mapping[str, Path]) -> None:
            move_files(files, work / "finished")
            finished.update({name: work / "finished" / name for name in files})

        yield Destination(work=work, deliver=deliver)
        for name in old:
            (folder / name).unlink()
        move_files(finished, folder)


@contextmanager
def _open_remote(
    folder: str, folders: Sequence[str], put: Callable[[Path], None], *, region: str, replace: bool
) -> Iterator[Destination]:
    """Uploads one batch of files while the next one is written; then deletes the old ones that none has replaced.

    put: copies a folder's contents to the destination.
    """
    old = _find_old(_list_names(folder, region=region), folders, where=folder, replace=replace)
    work = cache_folder() / "packing" / hashlib.sha256(folder.encode()).hexdigest()[:16]
    with work_folder(work), bounded_pool(1) as pool:
        batch, written = work / "batch", set[str]()
        uploads: list[Future[None]] = []

        def upload() -> None:
            put(batch)
            shutil.rmtree(batch)

        def deliver(files: Mapping[str, Path]) -> None:
            for earlier in uploads:
                earlier.result()
            move_files(files, batch)
            written.update(files)
            uploads[:] = [pool.submit(upload)]

        yield Destination(work=work, deliver=deliver)
        for last in uploads:
            last.result()
        left = [folder + name for name in old if name not in written]
        if left:
            operations.rm(left, region=region)


def _list_names(folder: str, *, region: str) -> list[str]:
    """The names below the folder's URL; none if the bucket does not exist."""
    try:
        entries = operations.ls(folder, region=region, recursive=True)
    except NotFoundError:
        return []
    return [str(entry.url).removeprefix(folder) for entry in entries if not isinstance(entry, S3Url)]


class WrittenShard(Struct, frozen=True, kw_only=True):
    """A written shard; name: its path below the destination."""

    name: str
    records: int
    size_bytes: int


class ShardWriter:
    """Writes records into shards, one after another, in one folder of a destination.

    A shard is part-00000.rec, with MXNet's index (.idx) and the list (.lst) in the folder index/ next to it.
    """

    def __init__(self, destination: Destination, *, folder: str = "") -> None:
        self._destination = destination
        self._folder = folder
        self._file: BinaryIO | None = None
        self._index: list[str] = []
        self._lines: list[str] = []
        self.size_bytes = 0
        """The size of the current shard."""
        self.written: list[WrittenShard] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def add(self, content: bytes, *, key: int, line: str = "") -> None:
        """Appends an encoded record. key: its number in the index; line: its line in the list."""
        if self._file is None:
            self._file = (self._destination.work / "part.rec").open("wb")
        self._file.write(content)
        self._index.append(f"{key}\t{self.size_bytes}\n")
        self._lines.append(line)
        self.size_bytes += len(content)

    def cut(self) -> None:
        """Completes the shard and delivers it. Does nothing if it has no record."""
        if self._file is None:
            return
        self._file.close()
        stem = f"part-{len(self.written):05}"
        work = self._destination.work
        files = {f"{self._folder}{INDEX_FOLDER}/{stem}.idx": work / "part.idx"}
        (work / "part.idx").write_text("".join(self._index))
        lines = "".join(self._lines)
        if lines:
            files[f"{self._folder}{INDEX_FOLDER}/{stem}.lst"] = work / "part.lst"
            (work / "part.lst").write_text(lines, encoding="utf-8", errors="surrogateescape")
        name = f"{self._folder}{stem}.rec"
        self._destination.deliver({**files, name: work / "part.rec"})
        self.written.append(WrittenShard(name=name, records=len(self._index), size_bytes=self.size_bytes))
        self._file, self._index, self._lines, self.size_bytes = None, [], [], 0


def check_apart(shards: Sequence[Shard], destination: str) -> None:
    """Raises UsageError if a source is in the destination, where it would be replaced while it is read."""
    folder = destination.rstrip("/") if is_s3(destination) else str(Path(destination).resolve())
    for shard in shards:
        name = shard.name if is_s3(shard.name) else str(Path(shard.name).resolve())
        if name.rpartition("/")[0] == folder:
            raise UsageError(
                f"{shard.name} is in {destination}, the destination of the shards", hint="choose another folder"
            )


def split_shards(
    sources: Sources,
    found: Sequence[Shard],
    destination: Destination,
    *,
    shards: int | None,
    shard_bytes: int | None,
    watch: Callable[[int], None],
) -> tuple[WrittenShard, ...]:
    """Splits the records of the sources into `shards` shards of about the same size, or of `shard_bytes` at most.

    The records keep their bytes and their order. The indexes number them from 0 across all shards. With `shards`, all
    bytes are cut into equal pieces, and a record belongs to the piece with its first byte. With `shard_bytes`, a shard
    ends before the record that would exceed it, and has at least one. watch: called with the size of each record.
    Raises ClusterError that names the file and the byte where a record is broken, UsageError if a shard would be empty.
    """
    total = sum(shard.size_bytes for shard in found)
    key = at = number = 0
    with ShardWriter(destination) as writer:
        for shard in found:
            with sources.open(shard) as file:
                for record in scan_records(file, name=shard.name):
                    size = len(record)
                    if shards is not None and at * shards // total > number:
                        writer.cut()
                        number += 1
                        _check_filled(at * shards // total, number, shards, total)
                    elif shard_bytes and writer.size_bytes and writer.size_bytes + size > shard_bytes:
                        writer.cut()
                    writer.add(record, key=key)
                    key, at = key + 1, at + size
                    watch(size)
        writer.cut()
        if shards is not None:
            _check_filled(shards - 1, number, shards, total)
    return tuple(writer.written)


def _check_filled(reached: int, number: int, shards: int, total: int) -> None:
    if reached > number:
        raise UsageError(
            f"the records are too long for {shards} shards of {total // shards} bytes: shard {number} would be empty",
            hint="ask for fewer shards, or use --shard-size",
        )
