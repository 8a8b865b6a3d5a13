"""Copies the record, the log and the samples of a job to RESULTS/ID/, in S3 or on a volume, while the job runs.

There, the numbers that its workers report also become TensorBoard's event files.

It works in its own thread; the supervisor waits for it only at the end, for a limited time. Each round writes the
record last: once the record states that the job has ended, the log is complete.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from node import instance_credentials, job_folder

if TYPE_CHECKING:
    from node.job.event_files import EventFiles

EVERY_S = 60.0
REST = 10  # copying a large log takes at most one tenth of the time
RECORD = "record.json"
SAMPLES = "samples"  # none in the first seconds of a job


class Copying:
    """Copies a job's folder to `url` while the job runs, in a thread.

    env, secrets: the variables of its processes. secrets: None for the newest credentials of the instance itself.
    message: shows the user a message: one line for each kind of problem; called in that thread.
    """

    def __init__(
        self,
        job: str,
        url: str,
        env: Mapping[str, str],
        secrets: Mapping[str, str] | None,
        message: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._url, self._env, self._given_secrets = url, env, secrets
        self._place = url if url.startswith("/") else "S3"
        self._folder = job_folder.path(job)
        self._message = message
        self._reported_kinds: set[object] = set()
        self._published: dict[str, tuple[int, int]] = {}
        self._ending = threading.Event()
        self._waking = threading.Event()  # also set together with _ending
        self._complete = False
        self._thread = threading.Thread(target=self._run, name="publish", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Starts to copy the changed files now."""
        self._waking.set()

    def finish(self, timeout_s: float) -> bool:
        """Copies the rest in at most `timeout_s` seconds. No process may write to the folder any longer.

        Returns whether all files are copied; if not, it may be called again.
        """
        self._ending.set()
        self._waking.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._report(
                "end", f"the job's record and log in {self._place} are incomplete: there was no time to write them"
            )
        return self._complete and not self._thread.is_alive()

    def _secrets(self) -> Mapping[str, str]:
        return instance_credentials.wait_for().variables if self._given_secrets is None else self._given_secrets

    def _run(self) -> None:
        from node.job.event_files import EventFiles  # noqa: PLC0415 - its imports would delay each job

        self._copy(RECORD)
        files = EventFiles(self._folder)
        pause_s = EVERY_S
        while not self._is_ending_after(pause_s):
            began = time.time()
            self._copy_all(files)
            pause_s = max(EVERY_S, (time.time() - began) * REST)
        self._complete = self._copy_all(files)

    def _is_ending_after(self, pause_s: float) -> bool:
        """Pauses. Returns whether the job has ended."""
        self._waking.wait(pause_s)
        self._waking.clear()
        return self._ending.is_set()

    def _copy_all(self, event_files: "EventFiles") -> bool:
        """Copies the files that have changed. Returns whether all are then the same as on this host."""
        try:
            event_files.update()
        except OSError as error:  # such as a full disk
            self._report("tensorboard", f"TensorBoard's event files cannot be written: {job_folder.describe(error)}")
        samples = (SAMPLES,) if os.path.exists(os.path.join(self._folder, SAMPLES)) else ()
        names = ("events", *samples, *event_files.names.values(), RECORD)
        return all([self._copy(name) for name in names])  # noqa: C419 - the record also after a failure

    def _copy(self, name: str) -> bool:
        path = os.path.join(self._folder, name)
        try:
            found = os.stat(path)
            version = (found.st_size, found.st_mtime_ns)
            if self._published.get(name) != version:
                self._put(path, self._url + name)
                self._published[name] = version
        except Exception as error:  # noqa: BLE001 - all are reported; StoreError is the usual one
            kind = getattr(error, "code", None) or getattr(error, "errno", None) or type(error).__name__
            self._report(kind, f"the job's log cannot be copied to {self._place}: {error or type(error)}")
            return False
        return True

    def _put(self, path: str, url: str) -> None:
        """Copies a file. Raises OSError, ValueError."""
        if url.startswith("/"):
            put_in_folder(path, url)
            return
        from node.staging import s3  # noqa: PLC0415 - importing obstore takes 0.1 s of every command on the head

        s3.Store({**self._env, **self._secrets()}).put_file(path, url)

    def _report(self, kind: object, text: str) -> None:
        """Adds a message for the user, once for each kind of problem."""
        if kind not in self._reported_kinds:
            self._reported_kinds.add(kind)
            self._message(text)


def put_in_folder(path: str, there: str) -> None:
    """Replaces a file on a volume atomically. Raises OSError."""
    os.makedirs(os.path.dirname(there), exist_ok=True)
    fresh = there + ".new"
    job_folder.remove(fresh)
    with open(path, "rb") as source, open(fresh, "xb") as target:  # "x": no link, which any node can make there
        shutil.copyfileobj(source, target)
    os.replace(fresh, there)
