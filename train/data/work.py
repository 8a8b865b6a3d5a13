"""A folder for unfinished files, next to the place where they go."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from foundation.file_lock import locked


@contextmanager
def work_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder, and removes it at the end; also removes one of a killed run.

    Raises BlockingIOError if another run uses it, OSError.
    """
    with suppress(FileNotFoundError), locked(path, wait=False, make=False):
        shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        with locked(path):
            yield path
    finally:
        shutil.rmtree(path)


def move_files(files: Mapping[str, Path], folder: Path) -> None:
    """Moves files to their names in a folder on the same file system, each atomically. Raises OSError."""
    for name, path in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
