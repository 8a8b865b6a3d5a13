"""The temporary file that a download is written to before it gets its name.

It is new, only its owner may read it, and its run holds a lock on it: the next run in the same folder deletes those
that nobody holds, because their run was killed.
"""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from foundation.errors import ClusterError
from foundation.file_lock import remove_unheld
from train.s3.transfer_plan import Download

PREFIX, _SUFFIX = ".cluster-get-", ".part"


def find_file_mode() -> int:
    """The mode of new files. The umask can only be read by setting it, so not while threads create files."""
    mask = os.umask(0o022)
    os.umask(mask)
    return 0o666 & ~mask


class PartialFile:
    """The temporary file of a download."""

    def __init__(self, destination: Path, mode: int) -> None:
        """Creates it, and missing folders. mode: of the complete file. Raises ClusterError, OSError."""
        destination.parent.mkdir(parents=True, exist_ok=True)
        if destination.is_dir():
            raise ClusterError("there is a folder of this name")
        self.descriptor, self._name = tempfile.mkstemp(_SUFFIX, PREFIX, dir=destination.parent)
        with suppress(OSError):  # a file system without locks, where leftovers stay
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        self._destination = destination
        self._mode = mode

    def write(self, data: bytes | memoryview, begin: int) -> None:
        """Writes bytes of the object at the offset `begin`."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self.descriptor, view, begin)
            view, begin = view[written:], begin + written

    def publish(self) -> None:
        """Gives the complete file its name. Raises OSError."""
        os.fchmod(self.descriptor, self._mode)
        Path(self._name).replace(self._destination)
        os.close(self.descriptor)

    def remove(self) -> None:
        """Deletes the file."""
        Path(self._name).unlink(missing_ok=True)
        os.close(self.descriptor)


def remove_unfinished(folders: Iterable[Path]) -> None:
    """Deletes the temporary files of killed runs in these folders."""
    for folder in folders:
        remove_unheld(folder.glob(f"{PREFIX}*{_SUFFIX}"))


def refuse_links(folder: Path, files: Iterable[Path]) -> None:
    """Raises ClusterError if a folder between `folder` and one of the files is a symbolic link."""
    between = {parent for file in files for parent in file.parents[: len(file.parts) - len(folder.parts) - 1]}
    links = sorted(str(path) for path in between if path.is_symlink())
    if links:
        more = f" and {len(links) - 1} more" if len(links) > 1 else ""
        raise ClusterError(
            f"{links[0]} is a symbolic link{more}: get writes through no link below {folder}",
            hint="remove the link, or copy that folder separately, with the link's target as the destination",
        )


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
        paths = [Path(root, name) for name in sorted(names) if not name.startswith(PREFIX)]
        surplus += [path for path in paths if path not in kept and not is_excluded(path.relative_to(folder).as_posix())]
    return tuple(surplus)
