"""Fetches files from their URLs to this machine, several at once, and reports them as one step."""

import http.client
import shutil
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from bootstrap.environment.file_cache import BundleFile, find_digest, is_here
from bootstrap.environment.uv import open_url
from foundation.errors import ClusterError
from foundation.file_lock import remove_unheld
from foundation.files import UNFINISHED, written_whole
from foundation.progress import Event, Report
from foundation.thread_pool import run_in_thread

TRIES = 4
FIRST_PAUSE_S = 0.5
AT_ONCE = 8
_BROKEN = (OSError, http.client.HTTPException)


class Fetches:
    """The fetches of one command. Safe to use from several threads."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._places = threading.Semaphore(AT_ONCE)
        self._futures: dict[str, Future[None]] = {}
        self._left = 0
        self._began = 0.0
        self._what = ""

    def begin(self, files: Iterable[BundleFile]) -> None:
        """Starts to fetch the files that have URLs and are not on this machine."""
        with self._lock:
            missing = {file.sha256: file for file in files if file.urls and file.sha256 not in self._futures}
            new = [file for file in missing.values() if not is_here(file)]
            if new and not self._left:
                self._began = time.monotonic()
                size_mb = sum(file.size_bytes for file in new) / 1e6
                self._what = f"fetching wheels for the nodes: {len(new)} files, {size_mb:.0f} MB"
                self._report(Event(kind="start", what=self._what))
            for file in new:
                self._left += 1
                self._futures[file.sha256] = run_in_thread(partial(self._fetch, file))

    def wait(self, file: BundleFile) -> None:
        """Waits until a file is on this machine. Raises ClusterError."""
        self.begin([file])
        with self._lock:
            future = self._futures.get(file.sha256)
        if future is not None:
            future.result()

    def _fetch(self, file: BundleFile) -> None:
        try:
            with self._places:
                bring_here(file)
        finally:
            with self._lock:
                self._left -= 1
                if not self._left:
                    duration_s = time.monotonic() - self._began
                    self._report(Event(kind="done", what=self._what, duration_s=duration_s))


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
