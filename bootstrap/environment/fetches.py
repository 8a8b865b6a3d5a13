"""Fetches files from their URLs to this machine."""

import errno
import http.client
import time
from collections.abc import Callable, Sequence
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
READ_BYTES = 1 << 18
_BROKEN = (OSError, http.client.HTTPException)

Advance = Callable[[int], object]
"""Called with the number of bytes that arrived; negative when they are discarded."""


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
        _copy(url, path, lambda _: None)
    except _BROKEN as error:
        raise ClusterError(f"{url} cannot be downloaded: {error}", hint=f"curl -fLO {url}") from error


def _copy(url: str, path: Path, advance: Advance) -> None:
    with open_url(url) as answer, path.open("wb") as file:
        while data := answer.read(READ_BYTES):
            file.write(data)
            advance(len(data))


def bring_here(file: BundleFile, *, advance: Advance = lambda _: None) -> None:
    """Fetches a file from its URLs, in turn, to its path on this machine, where it appears only when whole and checked.

    Raises ClusterError.
    """
    if is_here(file):
        return
    remove_unheld(file.path.parent.glob(f"{UNFINISHED}*"))  # a killed command may have left gigabytes
    problems: dict[str, Exception] = {}
    for number, url in ((number, url) for number in range(TRIES) for url in file.urls):
        time.sleep(FIRST_PAUSE_S * 2 ** (number - 1) if number else 0)
        try:
            _bring(file, url, advance)
        except _BROKEN as error:
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                raise ClusterError(f"{file.path.parent}: {error}", hint="free some space there") from error
            problems[url] = error
        else:
            return
    why = "\n  ".join(f"{url}: {error}" for url, error in problems.items())
    raise ClusterError(
        f"{file.name} could not be fetched: {why or f'{file.path} is no longer there, and it has no URL'}",
        hint="run the command again, or check that this machine reaches the server",
    )


def _bring(file: BundleFile, url: str, advance: Advance) -> None:
    arrived: list[int] = []

    def note(count: int) -> None:
        arrived.append(count)
        advance(count)

    try:
        with written_whole(file.path) as temporary:
            _copy(url, temporary, note)
            digest = find_digest(temporary)
            if digest != file.sha256:
                raise OSError(f"the download has the SHA-256 {digest}, not {file.sha256}")
    except _BROKEN:
        advance(-sum(arrived))
        raise


def bring_all_here(files: Sequence[BundleFile]) -> None:
    """Fetches files, several at once. Raises ClusterError."""
    map_in_threads(lambda file, _: bring_here(file), files, threads=AT_ONCE)
