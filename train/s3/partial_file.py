"""The folder that `data get` writes to, and the temporary file that a download is written to before it gets its name.

The folder stays open: a symbolic link below it is never followed, even if it is created meanwhile. The name of a
temporary file begins with a random token of its run. The file must not exist, and only its owner may read it: no other
user can create it in advance, even in a folder that others may write to. run_journal.py records the token, so that the
next run deletes what a killed run left.
"""

import errno
import itertools
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from foundation.errors import ClusterError
from train.s3.plan import Download
from train.s3.run_journal import PARTIAL_PREFIX

# O_PATH (Linux only) also opens a folder that may be written to but not listed.
_FLAGS = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_HINT = "remove the link, or copy that folder separately, with the link's target as the destination"


class LocalFolder:
    """A folder that the user named. It may be a link, and so may the folders above it.

    Everything below is opened step by step, relative to the folder's descriptor: replacing a folder by a link while
    files arrive does not change where they are written.
    """

    def __init__(self, path: Path) -> None:
        """Opens the folder; creates it if it is missing. Raises ClusterError, OSError."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise ClusterError(f"{path}: not a folder") from None
        self.real_path = Path(os.path.realpath(path))
        self._descriptor = os.open(path, _FLAGS)

    def close(self) -> None:
        """Closes the folder."""
        os.close(self._descriptor)

    def open_parent(self, file: Path, *, create: bool = False) -> int:
        """Opens the folder of a file below; returns a descriptor, which the caller closes.

        create: create missing folders. Raises ClusterError for a link, OSError.
        """
        at = os.dup(self._descriptor)
        path = self.path
        for part in file.relative_to(self.path).parts[:-1]:
            path /= part
            try:
                below = _open_below(at, part, create=create)
            except OSError as error:
                if error.errno in {errno.ELOOP, errno.ENOTDIR} and _is_link(part, at):
                    raise _explain_links(self.path, [path]) from error
                raise
            finally:
                os.close(at)
            at = below
        return at

    def find_real_folder(self, folder: Path) -> Path:
        """The path of a folder below, without links. Pure."""
        return self.real_path / folder.relative_to(self.path)

    def remove(self, file: Path) -> None:
        """Deletes a file below if it exists. Raises ClusterError if its folder is a link, OSError."""
        parent = self.open_parent(file)
        try:
            with suppress(FileNotFoundError):
                os.unlink(file.name, dir_fd=parent)
        finally:
            os.close(parent)


def refuse_links(folder: Path, files: Iterable[Path]) -> None:
    """Raises ClusterError if a folder between `folder` and one of the files is a symbolic link."""
    between = {parent for file in files for parent in _folders_between(folder, file)}
    links = sorted(path for path in between if path.is_symlink())
    if links:
        raise _explain_links(folder, links)


def _folders_between(folder: Path, file: Path) -> Sequence[Path]:
    return file.parents[: len(file.parts) - len(folder.parts) - 1]


def _explain_links(folder: Path, links: Sequence[Path]) -> ClusterError:
    listed = ", ".join(str(link) for link in links[:5]) + (f" and {len(links) - 5} more" if len(links) > 5 else "")
    are = "is a symbolic link" if len(links) == 1 else "are symbolic links"
    return ClusterError(f"{listed} {are}: get writes through no link below {folder}", hint=_HINT)


def _open_below(parent: int, name: str, *, create: bool) -> int:
    flags = _FLAGS | os.O_NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):  # another thread was faster
        os.mkdir(name, dir_fd=parent)
    return os.open(name, flags, dir_fd=parent)


def _is_link(name: str, parent: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


_PARTIAL = re.compile(re.escape(PARTIAL_PREFIX) + r"[0-9a-f]{32}-[0-9]+")


def is_partial(name: str) -> bool:
    """Whether this is the name of a temporary file: another run may be writing it. Pure."""
    return _PARTIAL.fullmatch(name) is not None


def find_surplus_files(
    folder: Path, planned: Sequence[Download], is_excluded: Callable[[str], bool]
) -> tuple[Path, ...]:
    """The files below the folder that no download writes, except excluded ones and temporary files of other runs.

    Does not follow links.
    """
    kept = {download.destination for download in planned}
    surplus = []
    for root, folders, names in os.walk(folder):
        folders.sort()
        paths = [Path(root, name) for name in sorted(names) if not is_partial(name)]
        surplus += [path for path in paths if path not in kept and not is_excluded(path.relative_to(folder).as_posix())]
    return tuple(surplus)


class PartialFiles:
    """Creates the temporary files of a run. Thread-safe."""

    def __init__(self, folder: LocalFolder, token: str, unchanged: Iterable[Path] = ()) -> None:
        """unchanged: files that other objects of the run have already become."""
        self.folder = folder
        self.mode = 0o666 & ~_find_umask()
        self._token = token
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._finished: dict[tuple[int, int], str] = {}
        for path in unchanged:
            with suppress(FileNotFoundError):  # deleted meanwhile
                status = path.stat()
                if status.st_nlink == 1:  # the names of a hard link are two names
                    self._finished[status.st_dev, status.st_ino] = path.name

    def open(self, destination: Path) -> "PartialFile":
        """Creates the temporary file for a file below the folder, and its folder. Raises ClusterError, OSError."""
        parent = self.folder.open_parent(destination, create=True)
        try:
            _refuse_folder(destination.name, parent)
            name = f"{PARTIAL_PREFIX}{self._token}-{next(self._numbers)}"
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return PartialFile(self, destination, name, parent, os.open(name, flags, 0o600, dir_fd=parent))
        except BaseException:
            os.close(parent)
            raise

    def rename(self, name: str, destination: str, parent: int) -> None:
        """Gives a temporary file its name in the same folder.

        Raises ClusterError if that would replace another object's file, as where A and a are the same name.
        """
        with self._lock:
            mine, there = os.stat(name, dir_fd=parent), _find(destination, parent)
            other = there and self._finished.get((there.st_dev, there.st_ino))
            if other:
                raise ClusterError(f"this file system does not tell the names {destination} and {other} apart")
            os.rename(name, destination, src_dir_fd=parent, dst_dir_fd=parent)
            self._finished[mine.st_dev, mine.st_ino] = destination


class PartialFile:
    """The temporary file of a download."""

    def __init__(self, files: PartialFiles, destination: Path, name: str, parent: int, descriptor: int) -> None:
        """parent: a descriptor of its folder."""
        self.descriptor = descriptor
        self._files = files
        self._destination = destination.name
        self._name = name
        self._parent = parent

    def write(self, data: bytes | memoryview, begin: int) -> None:
        """Writes bytes of the object at the offset `begin`."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self.descriptor, view, begin)
            view, begin = view[written:], begin + written

    def publish(self) -> None:
        """Gives the complete file its name.

        Raises ClusterError if another process replaced it, or another object of the run has this name, OSError.
        """
        mine, found = os.fstat(self.descriptor), _find(self._name, self._parent)
        if found is None or (found.st_dev, found.st_ino) != (mine.st_dev, mine.st_ino):
            raise ClusterError("another process moved or replaced its temporary file")
        os.fchmod(self.descriptor, self._files.mode)
        self._files.rename(self._name, self._destination, self._parent)
        self._close()

    def remove(self) -> None:
        """Deletes the file. If another process has replaced it with anything but a regular file, that stays."""
        found = _find(self._name, self._parent)
        if found is not None and stat.S_ISREG(found.st_mode):
            os.unlink(self._name, dir_fd=self._parent)
        self._close()

    def _close(self) -> None:
        os.close(self.descriptor)
        os.close(self._parent)


def _find(name: str, parent: int) -> os.stat_result | None:
    """The status of the entry with this name, without following links; None if there is none."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _refuse_folder(name: str, parent: int) -> None:
    """Raises ClusterError if a folder, or a link to one, has this name."""
    try:
        status = os.stat(name, dir_fd=parent)
    except OSError:
        return  # no such name, or a dangling link, which is replaced
    if stat.S_ISDIR(status.st_mode):
        raise ClusterError("there is a folder of this name")


def _find_umask() -> int:
    """The process's umask. It can only be read by setting it, so not while threads create files."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
