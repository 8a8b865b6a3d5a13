"""A folder for unfinished files, next to the place where they go."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def work_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder, and removes it at the end; also removes one of a killed run. Raises OSError."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def move_files(files: Mapping[str, Path], folder: Path) -> None:
    """Moves files to their names in a folder on the same file system, each atomically. Raises OSError."""
    for name, path in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
