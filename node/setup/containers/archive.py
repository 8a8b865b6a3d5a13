"""An image as a file in the node's store (store.py), from which chain.py gives it to other nodes."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from typing import Any

READ_BYTES = 1 << 20


def folder(name: str) -> str:
    """The path of a folder below ~/.cluster. Creates it if it does not exist."""
    path = os.path.join(os.path.expanduser("~"), ".cluster", name)
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def save(image: str, write: Callable[[str], object]) -> dict[str, Any]:
    """Saves an image to the store. Returns {"sha256", "name", "size"}. write(PATH) writes the file. Raises OSError.

    What a killed save leaves in incoming/, the next set-up removes.
    """
    name = f"image-{image.rpartition(':')[2][:12]}.tar"
    with tempfile.TemporaryDirectory(dir=folder("incoming")) as unfinished:
        path = os.path.join(unfinished, name)
        write(path)
        digest = hashlib.sha256()
        with open(path, "rb") as stream:
            for data in iter(lambda: stream.read(READ_BYTES), b""):
                digest.update(data)
        size = os.stat(path).st_size
        os.rename(path, os.path.join(folder(f"files/{digest.hexdigest()}"), name))
    return {"sha256": digest.hexdigest(), "name": name, "size": size}
