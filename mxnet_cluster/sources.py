"""Finds and reads files of records, on this machine or in S3.

Reads an S3 object in order, several ranges at a time, with bounded memory.
"""

from __future__ import annotations

import errno
import glob
import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from mxnet_cluster.errors import ClusterError, NotFoundError

if TYPE_CHECKING:
    import s3fs
    from _typeshed import WriteableBuffer

SCHEME = "s3://"
INDEX_FOLDER = "index"
"""A subfolder of the shards' folder, because MXNet reads every file directly in that folder."""

CHUNK_BYTES = 8 * 2**20
AHEAD = 4
"""The number of ranges that are requested or waiting to be read."""


@dataclass(frozen=True)
class Shard:
    """A file of records: its path or s3:// URL, and its size."""

    name: str
    size_bytes: int


def is_s3(name: str) -> bool:
    """Returns whether this is an S3 URL."""
    return name.startswith(SCHEME)


def has_glob(name: str) -> bool:
    """Returns whether it contains *, ? or [."""
    return any(char in name for char in "*?[")


class Sources:
    """Finds and opens files. Connects to S3 only for an S3 URL."""

    def __init__(self, *, region: str | None = None) -> None:
        self._region = region
        self._made: s3fs.S3FileSystem | None = None

    def find(self, words: Sequence[str], *, suffix: str = ".rec") -> tuple[Shard, ...]:
        """Returns the files for these words, which are files, globs, or folders (the files directly in them).

        A file or folder of exactly this name comes before a glob's matches. The files are in the order of the words,
        and sorted within each word. Globs and folders include only non-empty files that end with `suffix`. Raises
        NotFoundError if a word matches no file, or ClusterError.
        """
        found: list[Shard] = []
        for word in words:
            listed = self._find_s3(word, suffix) if is_s3(word) else _find_local(word, suffix)
            if not listed:
                raise NotFoundError(f"{word}: no {suffix} file there" if suffix else f"{word}: no file there")
            found += listed
        return tuple(found)

    @contextmanager
    def open(self, shard: Shard, *, begin: int = 0, end: int | None = None) -> Iterator[BinaryIO]:
        """Opens a file at byte `begin`. end: where reading will probably end; reading beyond it is slower.

        Raises ClusterError. Reading from S3 also raises it, if it fails or the object has changed.
        """
        if is_s3(shard.name):
            with self._open_s3(shard, begin=begin, end=shard.size_bytes if end is None else end) as file:
                yield file
            return
        with ExitStack() as stack:
            try:
                file = stack.enter_context(Path(shard.name).open("rb"))
                file.seek(begin)
            except OSError as error:
                raise ClusterError(f"{shard.name}: cannot be read: {error.strerror}") from error
            yield file

    @contextmanager
    def _open_s3(self, shard: Shard, *, begin: int, end: int) -> Iterator[BinaryIO]:
        """Opens the current version of an object. Reading raises ClusterError if the object changes."""
        with self._explained(shard.name):
            remote = self._s3.open(shard.name, cache_type="none")

        def fetch(begin: int, end: int) -> bytes:
            with self._explained(shard.name):
                content: bytes = remote.cache.fetcher(begin, end)
                return content

        pool = ThreadPoolExecutor(max_workers=AHEAD)
        raw = _Ahead(fetch, pool, size_bytes=shard.size_bytes, begin=begin, end=end)
        with remote:
            try:
                yield cast("BinaryIO", io.BufferedReader(raw, buffer_size=2**20))
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def read(self, name: str) -> bytes | None:
        """Returns the content of a small file, or None if it does not exist."""
        try:
            if not is_s3(name):
                return Path(name).read_bytes()
            with self._explained(name):
                content: bytes = self._s3.cat_file(name)
                return content
        except (FileNotFoundError, NotFoundError):
            return None

    def read_index(self, shard: Shard) -> bytes | None:
        """Returns the index (.idx) of a file of records, or None without one.

        The index is in the folder that `pack` creates, or next to the file.
        """
        folder, slash, name = shard.name.rpartition("/")
        stem = name.removesuffix(".rec")
        for path in (f"{folder}{slash}{INDEX_FOLDER}/{stem}.idx", f"{folder}{slash}{stem}.idx"):
            content = self.read(path)
            if content is not None:
                return content
        return None

    @property
    def _s3(self) -> "s3fs.S3FileSystem":
        if self._made is None:
            try:
                import s3fs  # noqa: PLC0415 - slow to import, and not needed for local files
            except ImportError as error:
                hint = 'pip install s3fs; for the nodes: [bootstrap] packages = ["s3fs"], then cluster up'
                raise ClusterError("reading s3:// needs the package s3fs, which is not installed", hint=hint) from error

            where = {"region_name": self._region} if self._region else {}
            self._made = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True, client_kwargs=where)
        return self._made

    def _find_s3(self, word: str, suffix: str) -> list[Shard]:
        path = word[len(SCHEME) :]
        key = path.partition("/")[2]
        with self._explained(word):
            if has_glob(key) and not self._s3.exists(path):
                entries = list(self._s3.glob(path, detail=True).values())
            elif not key or key.endswith("/"):
                entries = self._s3.ls(path, detail=True)
            else:
                entry = self._s3.info(path)
                if entry["type"] == "file":
                    return [_shard(entry)]
                entries = self._s3.ls(path, detail=True)
        files = [entry for entry in entries if entry["type"] == "file" and entry["name"].endswith(suffix)]
        return sorted((_shard(entry) for entry in files if entry["size"]), key=lambda shard: shard.name)

    @contextmanager
    def _explained(self, word: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as above

        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error.__cause__):
                raise NotFoundError(f"{word}: no such bucket", hint="cluster data ls") from error
            bucket = word[len(SCHEME) :].partition("/")[0]
            hint = f"cluster data ls {SCHEME}{bucket}/"
            raise NotFoundError(f"{word}: no such object or folder", hint=hint) from error
        except (ClientError, BotoCoreError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.EBUSY:  # s3fs's FileExpired
                raise ClusterError(f"{word}: it was changed while it was read", hint="run the command again") from error
            raise ClusterError(f"{word}: {error}") from error


def _shard(entry: dict[str, Any]) -> Shard:
    return Shard(name=SCHEME + entry["name"], size_bytes=entry["size"])


def _find_local(word: str, suffix: str) -> list[Shard]:
    path = Path(word)
    try:
        if path.is_dir():
            candidates = [os.fspath(child) for child in path.iterdir()]
        elif path.exists():
            return [Shard(name=word, size_bytes=path.stat().st_size)]
        elif has_glob(word):
            candidates = glob.glob(word, recursive=True)  # noqa: PTH207 - the pattern may be absolute
        else:
            raise NotFoundError(f"{word}: no such file or folder")
        files = [name for name in sorted(candidates) if name.endswith(suffix) and Path(name).is_file()]
        shards = [Shard(name=name, size_bytes=Path(name).stat().st_size) for name in files]
    except OSError as error:
        raise ClusterError(f"{error.filename}: cannot be read: {error.strerror}") from error
    return [shard for shard in shards if shard.size_bytes]


class _Ahead(io.RawIOBase):
    """A file whose ranges fetch(begin, stop) returns. It starts at `begin`, and reads ahead up to `end`."""

    def __init__(
        self, fetch: Callable[[int, int], bytes], pool: ThreadPoolExecutor, *, size_bytes: int, begin: int, end: int
    ) -> None:
        super().__init__()
        self._fetch = fetch
        self._pool = pool
        self._size_bytes = size_bytes
        self._end = end
        self._at = begin
        self._asked = begin
        self._coming: deque[Future[bytes]] = deque()
        self._here = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """As in io.RawIOBase. A move forward within the requested ranges keeps them; any other move discards them."""
        target = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence] + offset
        if not self._at <= target <= self._asked:
            for coming in self._coming:
                coming.cancel()
            self._coming.clear()
            self._here = memoryview(b"")
            self._at = self._asked = target
        while self._at < target:
            self._here = self._here or self._next()
            step = min(len(self._here), target - self._at)
            self._here, self._at = self._here[step:], self._at + step
        return self._at

    def readinto(self, buffer: "WriteableBuffer") -> int:
        self._here = self._here or self._next()
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._here))
        target[:count] = self._here[:count]
        self._here, self._at = self._here[count:], self._at + count
        return count

    def _next(self) -> memoryview:
        """Returns the next range, which is empty at the end."""
        self._ask()
        if not self._coming:
            return memoryview(b"")
        content = self._coming.popleft().result()
        self._ask()
        return memoryview(content)

    def _ask(self) -> None:
        """Requests the next ranges: AHEAD of them up to the probable end, then one at a time."""
        while len(self._coming) < (AHEAD if self._asked < self._end else 1) and self._asked < self._size_bytes:
            stop = min(self._asked + CHUNK_BYTES, self._size_bytes)
            self._coming.append(self._pool.submit(self._fetch, self._asked, stop))
            self._asked = stop
