"""The folder that `data get` writes to, held open: no symbolic link below it is followed, whenever it was made."""

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from provision.errors import ClusterError

# O_PATH: a folder that may be written to and not listed is good enough. Only Linux has it.
_FLAGS = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_HINT = "remove the link, or copy that folder by itself, with the link's target as the destination"


class LocalFolder:
    """A folder that the user named. It may be a link itself, and so may the folders above it.

    Everything below is opened step by step, relative to the folder's descriptor: somebody who replaces a folder by a
    link while files arrive does not change where they are written.
    """

    def __init__(self, path: Path) -> None:
        """Open it, and make it where it is missing. Raises ClusterError, OSError."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise ClusterError(f"{path}: not a folder") from None
        self.real_path = Path(os.path.realpath(path))
        self._descriptor = os.open(path, _FLAGS)

    def close(self) -> None:
        """Nobody uses it any more."""
        os.close(self._descriptor)

    def open_parent(self, file: Path, *, create: bool = False) -> int:
        """A descriptor of the folder that a file below is in; the caller closes it.

        create: make it where it is missing. Raises ClusterError for a link, OSError.
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

    def remove(self, file: Path) -> None:
        """Delete a file below, if it is there. Raises ClusterError for a link to its folder, OSError."""
        parent = self.open_parent(file)
        try:
            with suppress(FileNotFoundError):
                os.unlink(file.name, dir_fd=parent)
        finally:
            os.close(parent)


def refuse_links(folder: Path, files: Iterable[Path]) -> None:
    """Raise ClusterError where a folder between `folder` and one of the files is a symbolic link."""
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
