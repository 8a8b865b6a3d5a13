"""Where finished shards go: a folder on this machine, or one in S3. Each file appears there when all of it is there.

Until a run has ended there is a mark of it beside the shards. It tells the next run that what it finds was not
finished, and may be replaced; shards that were finished are replaced only if that is asked for.
"""

import fcntl
import hashlib
import os
import re
import shutil
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from provision.errors import ClusterError, UsageError
from provision.user_folders import cache_folder
from train.s3.url import is_s3, parse_url

INDEX_FOLDER = "index"
"""Beside the shards, so that it is none of the files that MXNet reads where it is given their folder."""

_OURS = re.compile(rf"part-\d{{5,}}\.rec|{INDEX_FOLDER}/(part-\d{{5,}}\.(idx|lst)|labels\.txt)")
_MARK = f"{INDEX_FOLDER}/.unfinished"
_WORK = ".cluster-pack"
_UNDER_WAY = 2
"""Shards that wait on this machine's disk to be uploaded, or are being uploaded."""


class Bucket(Protocol):
    """What is needed of S3, with URLs as they are typed."""

    def list_names(self, folder: str) -> Sequence[str]:
        """What of each key below the folder follows its URL."""

    def put_folder(self, source: Path, folder: str) -> None:
        """Copy what a local folder holds to the folder."""

    def delete(self, urls: Sequence[str]) -> None:
        """Delete objects."""


class Place(Protocol):
    """Takes finished files. `work` is a folder on this machine for those that are not."""

    @property
    def work(self) -> Path:
        """On the same disk as what `deliver` takes."""

    def deliver(self, files: Mapping[str, Path]) -> None:
        """Take finished files away, by the names that they get, in this order. May wait for earlier ones."""


@contextmanager
def open_place(
    destination: str, *, folders: Sequence[str], replace: bool, open_bucket: Callable[[], Bucket]
) -> Iterator[Place]:
    """A place for shards, whose names begin with one of `folders`; complete when the block ends without an error.

    Raises UsageError, before anything is changed, where finished shards are there and not `replace`, or where other
    files are, which MXNet would read as records; ClusterError where another run is at work there.
    """
    if is_s3(destination):
        url = parse_url(destination)
        folder = str(url.as_folder())
        with _open_remote(folder, folders, open_bucket(), replace=replace) as remote:
            yield remote
        return
    if not destination:
        raise UsageError("the destination is empty")
    try:
        with _open_local(Path(destination), folders, replace=replace) as local:
            yield local
    except OSError as error:
        raise ClusterError(f"{error.filename or destination}: cannot be written: {error.strerror}") from error


def find_old(names: Iterable[str], folders: Sequence[str], *, where: str, replace: bool) -> tuple[str, ...]:
    """Which of the names below a destination are shards, and so are to go. Pure.

    Raises UsageError where they may not, and for files beside them.
    """
    below = [
        (folder, name.removeprefix(folder)) for name in sorted(names) for folder in folders if name.startswith(folder)
    ]
    strangers = [folder + rest for folder, rest in below if rest and "/" not in rest and not _OURS.fullmatch(rest)]
    if strangers:
        raise UsageError(
            f"{where} holds other files ({', '.join(strangers[:3])}): MXNet reads every file of a folder as records",
            hint="choose a folder that is empty",
        )
    old = tuple(folder + rest for folder, rest in below if _OURS.fullmatch(rest))
    if old and not replace:
        raise UsageError(f"{where} holds shards already ({old[0]})", hint="choose another folder, or add --replace")
    return old


class _Local:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.work = folder / _WORK

    def deliver(self, files: Mapping[str, Path]) -> None:
        for name, path in files.items():
            target = self._folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)


@contextmanager
def _open_local(folder: Path, folders: Sequence[str], *, replace: bool) -> Iterator[_Local]:
    place = _Local(folder)
    beside = [folder / name for below in folders for name in (below, f"{below}{INDEX_FOLDER}")]
    found = [path for below in beside if below.is_dir() for path in below.iterdir() if not path.is_dir()]
    names = [path.relative_to(folder).as_posix() for path in found]
    old = find_old(names, folders, where=str(folder), replace=replace or place.work.exists())
    place.work.parent.mkdir(parents=True, exist_ok=True)
    _make_own(place.work)
    with _lock(place.work, str(folder)):
        _clear(place.work)
        for name in old:
            (folder / name).unlink(missing_ok=True)
        try:
            yield place
        except BaseException:
            _clear(place.work)  # and not the folder itself, which is the mark
            raise
        shutil.rmtree(place.work)


class _Remote:
    def __init__(self, folder: str, work: Path, bucket: Bucket) -> None:
        self._folder = folder
        self.work = work
        self._bucket = bucket
        self._uploader = ThreadPoolExecutor(1)
        self._under_way: deque[Future[None]] = deque()
        self._count = 0

    def deliver(self, files: Mapping[str, Path]) -> None:
        self._count += 1
        batch = self.work / f"batch-{self._count}"
        for name, path in files.items():
            target = batch / name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        self._under_way.append(self._uploader.submit(self._upload, batch))
        self._wait(_UNDER_WAY - 1)

    def close(self, *, finished: bool) -> None:
        """Wait for what is under way, and, where the run has come to its end, for all."""
        try:
            if finished:
                self._wait(0)
        finally:
            self._uploader.shutdown(wait=True, cancel_futures=True)

    def _wait(self, left: int) -> None:
        while len(self._under_way) > left:
            self._under_way.popleft().result()

    def _upload(self, batch: Path) -> None:
        self._bucket.put_folder(batch, self._folder)
        shutil.rmtree(batch)


@contextmanager
def _open_remote(folder: str, folders: Sequence[str], bucket: Bucket, *, replace: bool) -> Iterator[_Remote]:
    with _open_work(folder) as work:
        names = bucket.list_names(folder)
        old = find_old(names, folders, where=folder, replace=replace or _MARK in names)
        mark = work / "mark" / _MARK
        mark.parent.mkdir(parents=True)
        mark.touch()
        bucket.put_folder(work / "mark", folder)
        if old:
            bucket.delete([folder + name for name in old])
        remote = _Remote(folder, work, bucket)
        try:
            yield remote
        except BaseException:
            remote.close(finished=False)
            raise
        remote.close(finished=True)
        bucket.delete([folder + _MARK])


@contextmanager
def _open_work(url: str) -> Iterator[Path]:
    """A folder on this machine for what goes to `url`, gone in the end; what killed runs have left goes, too."""
    base = cache_folder() / "packing"
    mine = base / hashlib.sha256(url.encode()).hexdigest()[:16]
    try:
        base.mkdir(parents=True, exist_ok=True)
        with (base / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for other in base.iterdir():
                if other.is_dir() and other != mine:
                    _remove_unused(other)
            mine.mkdir(exist_ok=True)
            held = _lock(mine, url)
        with held:
            _clear(mine)
            try:
                yield mine
            finally:
                shutil.rmtree(mine)
    except OSError as error:
        raise ClusterError(f"{mine}: cannot be written: {error.strerror}") from error


def _remove_unused(folder: Path) -> None:
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # its run is at work
        shutil.rmtree(folder)


def _make_own(work: Path) -> None:
    """Make a folder that nobody else may write to. Raises ClusterError where there is another one, or a link."""
    with suppress(FileExistsError):
        work.mkdir(mode=0o700)
    found = work.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ClusterError(
            f"{work}: it is a link, or a folder that others may write to, and unfinished shards are to go there",
            hint=f"look at what it is, then: rm -r {work}",
        )


def _lock(work: Path, where: str) -> BinaryIO:
    lock = (work / "lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ClusterError(f"{where}: another command is writing there") from None
    return lock


def _clear(work: Path) -> None:
    """Remove what a killed run has left in its folder, but for the lock."""
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()
