"""Which clusters were launched from a folder of the user's machine, by a note beside each cluster's files."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

NOTE = "folder"
"""The name of the note; it has the path of the folder with cluster.toml."""


def find_launched(state: Path, folder: Path) -> Iterator[Path]:
    """Yields the folders below `state` with the files of clusters launched from `folder`; `down` removes them."""
    for pattern in (f"aws/*/*/{NOTE}", f"sandbox-*/*/{NOTE}"):
        for note in sorted(state.glob(pattern)):
            with suppress(OSError):  # removed meanwhile
                if note.read_bytes() == os.fsencode(folder):
                    yield note.parent
