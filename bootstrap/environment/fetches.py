"""Fetches wheels from their URLs to this machine, several at once, and reports them as one step."""

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial

from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.package_index import AT_ONCE, bring_here, is_here
from foundation.progress import Event, Report
from foundation.thread_pool import run_in_thread

WHAT = "fetching wheels for the nodes"
REPORT_EVERY_S = 0.2


class Fetches:
    """The fetches of one command. Safe to use from several threads."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._places = threading.Semaphore(AT_ONCE)
        self._futures: dict[str, Future[None]] = {}
        self._left = self._files = self._total_bytes = self._done_bytes = 0
        self._began = self._reported = 0.0

    def begin(self, files: Iterable[BundleFile]) -> None:
        """Starts to fetch the files that have URLs and are not on this machine."""
        with self._lock:
            asked = {file.sha256: file for file in files if file.urls and file.sha256 not in self._futures}
            new = [file for file in asked.values() if not is_here(file)]
            if new and not self._left:
                self._files = self._total_bytes = self._done_bytes = 0
                self._began = time.monotonic()
                self._report(Event(kind="start", what=WHAT))
            for file in new:
                self._left += 1
                self._files += 1
                self._total_bytes += file.size_bytes
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
                bring_here(file, grew=self._grow)
        finally:
            with self._lock:
                self._left -= 1
                if not self._left:
                    what = f"{WHAT}: {self._files} files, {self._total_bytes / 1e6:.0f} MB"
                    duration_s = time.monotonic() - self._began
                    self._report(Event(kind="done", what=what, step=WHAT, duration_s=duration_s))

    def _grow(self, size_bytes: int) -> None:
        with self._lock:
            self._done_bytes += size_bytes
            now = time.monotonic()
            if now - self._reported >= REPORT_EVERY_S:
                self._reported = now
                done = min(self._done_bytes, self._total_bytes) / 1e6  # a file that is fetched again counts twice
                what = f"{WHAT}: {done:.0f} of {self._total_bytes / 1e6:.0f} MB"
                self._report(Event(kind="progress", what=what, step=WHAT))
