"""Notifies a program of a job that its node will be interrupted, so that it can save a checkpoint.

    from mxnet_cluster.interruption import Interruption

    interruption = Interruption()
    for epoch in range(first_epoch, epochs):
        for batch, data in enumerate(batches, start=1):
            train(data)
            if interruption.has_notice():          # on rank 0 is enough
                url = save(epoch, batch)
                interruption.note_saved(url, epoch, batch)
                interruption.wait_for_end()        # the job continues on another node, from the checkpoint

Outside a job, there is never a notice. Imports only the standard library; Python 3.6 or later.
"""

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Mapping

VARIABLE = "CLUSTER_NOTICE_FILE"
SAVED, PROGRESS = ".saved", ".progress"
PROGRESS_EVERY_S = 0.5
WAIT_S = 60.0


class Interruption:
    """The notices for this process. environment: contains CLUSTER_NOTICE_FILE in a job.

    A notice is a file, and SIGUSR1 for processes that handle it. The handler only sets a flag. If the program has its
    own handler for SIGUSR1, that handler stays.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._path = Path(environment[VARIABLE]) if environment.get(VARIABLE) else None
        self._is_signalled = self._is_saved = False
        self._progress_at = 0.0
        is_main = threading.current_thread() is threading.main_thread()
        if self._path and is_main and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, self._take_signal)
            # C libraries may not expect an interrupted system call.
            signal.siginterrupt(signal.SIGUSR1, False)  # noqa: FBT003 - it takes positional arguments only

    def _take_signal(self, _number: int, _frame: Any) -> None:
        self._is_signalled = True

    def has_notice(self) -> bool:
        """Returns whether a node of the job will be interrupted, and no checkpoint has been saved since the notice."""
        return self._is_signalled or (not self._is_saved and self._path is not None and self._path.exists())

    def note_saved(self, url: str, epoch: int, batch: int) -> None:
        """Records that a complete checkpoint is at this path or URL.

        It contains `epoch` whole epochs and `batch` batches of the next one. Call this only when the checkpoint can be
        read, because the job's processes are then ended. Raises OSError.
        """
        self._write(SAVED, {"url": url, "epoch": epoch, "batch": batch})
        self._is_signalled, self._is_saved = False, True

    def note_progress(self, epoch: int, batch: int, batches: int, *, at_once: bool = False) -> None:
        """Records the progress of training, so that lost batches can be counted.

        epoch: the number of whole epochs. batch: the number of batches of the next epoch. batches: the length of that
        epoch. Writes a small file, at most every PROGRESS_EVERY_S seconds unless `at_once` is true. If it cannot be
        written, only this number is lost.
        """
        now = time.monotonic()
        if at_once or now >= self._progress_at + PROGRESS_EVERY_S:
            self._progress_at = now
            with contextlib.suppress(OSError):
                self._write(PROGRESS, {"epoch": epoch, "batch": batch, "batches": batches})

    def wait_for_end(self) -> None:
        """Waits until the job's processes are ended, at most WAIT_S seconds.

        Further training would be lost, because the job continues from the checkpoint. A job with on_node_loss = "fail"
        is not ended, and continues after the wait.
        """
        if self._path is not None:
            time.sleep(WAIT_S)

    def _write(self, suffix: str, content: Mapping[str, Any]) -> None:
        """Writes a file atomically: a reader never sees half of it."""
        if self._path is None:
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path.with_name(self._path.name + suffix)
        draft = path.with_name("{}.{}".format(path.name, os.getpid()))
        draft.write_text(json.dumps(content))
        draft.replace(path)
