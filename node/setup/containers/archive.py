"""An image as a file in the node's store (store.py), from which chain.py gives it to other nodes.

While it is saved, it is in ~/.cluster/images/, which is locked; a whole one is ~/.cluster/files/SHA256/image-ID.tar.
"""

import errno
import fcntl
import hashlib
import os
import shutil
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

    Removes the file that a killed save has left: while this process holds the lock, no other one writes it.
    """
    unfinished = folder("images")
    lock = os.open(unfinished, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in os.listdir(unfinished):
            os.unlink(os.path.join(unfinished, name))
        name = f"image-{image.rpartition(':')[2][:12]}.tar"
        path = os.path.join(unfinished, name)
        try:
            write(path)
            digest = hashlib.sha256()
            with open(path, "rb") as stream:
                for data in iter(lambda: stream.read(READ_BYTES), b""):
                    digest.update(data)
            size = os.stat(path).st_size
            place = os.path.join(folder("files"), digest.hexdigest())
            os.makedirs(place, exist_ok=True)
            os.rename(path, os.path.join(place, name))
        finally:
            if os.path.exists(path):
                os.unlink(path)
    finally:
        os.close(lock)
    return {"sha256": digest.hexdigest(), "name": name, "size": size}


def find(sha256: str) -> str:
    """The path of a whole file in the store. Raises OSError."""
    place = os.path.join(folder("files"), sha256)
    names = os.listdir(place)
    if not names:  # a killed program had just made the folder
        raise FileNotFoundError(errno.ENOENT, "no image in it", place)
    return os.path.join(place, names[0])


def forget(sha256: str) -> None:
    """Removes a file from the store."""
    shutil.rmtree(os.path.join(folder("files"), sha256), ignore_errors=True)
