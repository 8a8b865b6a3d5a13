"""Fetches files from their URLs to this machine."""

import http.client
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from bootstrap.environment.file_cache import BundleFile, find_digest, is_here
from bootstrap.environment.uv import open_url
from foundation.errors import ClusterError
from foundation.file_lock import remove_unheld
from foundation.files import UNFINISHED, written_whole
from foundation.thread_pool import map_in_threads

TRIES = 4
FIRST_PAUSE_S = 0.5
AT_ONCE = 8
_BROKEN = (OSError, http.client.HTTPException)


def find_size(url: str) -> int:
    """The size of a file in bytes; 0 if the server does not tell it. Raises ClusterError."""
    try:
        with open_url(url) as answer:  # not HEAD: the signature in an address of S3 is for GET alone
            return int(answer.headers["Content-Length"] or 0)
    except _BROKEN as error:
        raise ClusterError(f"{url}: {error}", hint="check that this machine reaches the package index") from error


def download(url: str, path: Path) -> None:
    """Downloads a file. Raises ClusterError."""
    try:
        with open_url(url) as answer, path.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except _BROKEN as error:
        raise ClusterError(f"{url} cannot be downloaded: {error}", hint=f"curl -fLO {url}") from error


def bring_here(file: BundleFile) -> None:
    """Fetches a file from its URLs to its path on this machine. It appears at the path only when whole and checked.

    Raises ClusterError.
    """
    if is_here(file):
        return
    remove_unheld(file.path.parent.glob(f"{UNFINISHED}*"))  # a killed command may have left gigabytes
    why = "it is no longer on this machine, and has no URL"
    for number, url in enumerate(url for url in file.urls for _ in range(TRIES)):
        if number:
            time.sleep(FIRST_PAUSE_S * 2 ** ((number - 1) % TRIES))
        try:
            with written_whole(file.path) as temporary:
                with open_url(url) as answer, temporary.open("wb") as out:
                    shutil.copyfileobj(answer, out)
                digest = find_digest(temporary)
                if digest != file.sha256:
                    raise OSError(f"the download has the SHA-256 {digest}, not {file.sha256}")
        except _BROKEN as error:
            why = f"{url}: {error}"
            continue
        return
    raise ClusterError(
        f"{file.name} could not be fetched: {why}",
        hint="run the command again, or check that this machine reaches the package index",
    )


def bring_all_here(files: Sequence[BundleFile]) -> None:
    """Fetches files, several at once. Raises ClusterError."""
    map_in_threads(lambda file, _: bring_here(file), files, threads=AT_ONCE)
