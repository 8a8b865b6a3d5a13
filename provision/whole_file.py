"""Files that are there in whole, or as they were before."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, data: bytes, *, to_disk: bool = False) -> None:
    """Write a file, for its owner alone, under another name, and rename it. Its folder has to be there.

    to_disk: a power failure, too, leaves one or the other. Raises OSError, and then leaves nothing behind.
    """
    descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if to_disk:
                file.flush()
                os.fsync(file.fileno())
        Path(new).replace(path)
    except BaseException:
        Path(new).unlink(missing_ok=True)
        raise
