"""Notices that this job will soon lose a node, and the checkpoints that a training saves after a notice.

`cluster train` sets $CLUSTER_NOTICE_FILE. A notice is given by creating this file, or by SIGUSR1. The script then saves
a checkpoint after the current batch, and writes $CLUSTER_NOTICE_FILE.saved once the checkpoint is complete:
{"url": ..., "epoch": finished epochs, "batch": finished batches of the next one}. $CLUSTER_NOTICE_FILE.progress has the
same numbers after every batch. Imports no framework.
"""

import json
import logging
import os
import signal
import time
from typing import Any, Callable, Mapping, Optional

from common import ScriptError

logger = logging.getLogger()
VARIABLE = "CLUSTER_NOTICE_FILE"
SAVED, PROGRESS = ".saved", ".progress"
PAUSE_S = 30.0
_POLL_S = 0.1
_AGAIN_S = 5.0  # after a checkpoint that could not be saved
_PROGRESS_BYTES = 80  # a fixed length, so that a write replaces the whole content
Save = Callable[[int, int], str]  # saves a checkpoint after these epochs and batches; returns its name


class Notice:
    """Whether this process has been asked for a checkpoint, by a file or by SIGUSR1."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._path = environment.get(VARIABLE, "")
        self._signalled = False
        self._answered = False  # the file's notice
        self._progress: Optional[int] = None

    def listen(self) -> None:
        """Notes SIGUSR1 from now on. Nothing is saved in the handler: it may interrupt a batch, or a save."""
        signal.signal(signal.SIGUSR1, self._note)
        signal.siginterrupt(signal.SIGUSR1, False)  # noqa: FBT003 - it takes no names; system calls of libraries continue

    def _note(self, *_: Any) -> None:
        self._signalled = True

    def is_given(self) -> bool:
        """Whether there is an unanswered notice."""
        return self._signalled or (not self._answered and self._exists())

    def answer(self, name: str, epoch: int, batch: int) -> None:
        """Reports that a checkpoint is complete. name: the full name of its params."""
        self._signalled = False
        self._answered = self._exists()
        if not self._path:
            return
        try:
            _write(self._path + SAVED, json.dumps({"url": name, "epoch": epoch, "batch": batch}))
        except OSError as error:
            logger.warning("%s: %s", self._path + SAVED, error.strerror)

    def wait_for_end(self, timeout_s: float = PAUSE_S) -> None:
        """Waits until this process is ended: any further work would be lost.

        Returns at once without a notice file; otherwise when the notice is withdrawn, or after timeout_s, as with
        [train] on_node_loss = "fail".
        """
        ends_at = time.monotonic() + timeout_s
        while self._exists() and time.monotonic() < ends_at:
            time.sleep(_POLL_S)
        self._answered = self._exists()

    def note_progress(self, epoch: int, batch: int, batches: int) -> None:
        """Writes down the finished epochs, and the finished batches of the next one, which has `batches` in all."""
        if not self._path:
            return
        if batch == batches:
            epoch, batch = epoch + 1, 0
        text = json.dumps({"epoch": epoch, "batch": batch, "batches": batches}).ljust(_PROGRESS_BYTES - 1) + "\n"
        try:
            if self._progress is None:
                os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
                self._progress = os.open(self._path + PROGRESS, os.O_WRONLY | os.O_CREAT, 0o600)
            os.pwrite(self._progress, text.encode("utf-8"), 0)
        except OSError as error:
            # Only a number in the job's record is lost.
            logger.warning("%s: %s", self._path + PROGRESS, error.strerror)
            self._path = "" if self._progress is None and not self._exists() else self._path

    def _exists(self) -> bool:
        return bool(self._path) and os.path.exists(self._path)


class Checkpointer:
    """Saves checkpoints within epochs: upon a notice, and every `every` batches; 0: only upon a notice."""

    def __init__(self, notice: Notice, save: Optional[Save], every: int, *, in_step: bool) -> None:
        """save: None if this process does not save. in_step: the processes wait for each other in every batch."""
        self._notice = notice
        self._save = save
        self._every = every
        self._in_step = in_step
        self._not_before = 0.0

    def after_batch(self, epoch: int, batch: int) -> None:
        """Saves if it is time. epoch: finished epochs; batch: finished batches of the next one."""
        if self._notice.is_given():
            self.upon_notice(epoch, batch)
        elif self._save is not None and self._every and batch and batch % self._every == 0:
            self._save(epoch, batch)

    def upon_notice(self, epoch: int, batch: int) -> None:
        """Saves, and waits for the end of this process."""
        if self._save is None:
            # A process in step stops by itself when the saving process does, which still needs its gradients.
            if not self._in_step:
                self._notice.wait_for_end()
            return
        if time.monotonic() < self._not_before:
            return
        try:
            name = self._save(epoch, batch)
        except ScriptError as error:
            # The training continues: an earlier checkpoint may be complete, and the next try may succeed.
            logger.warning("Asked for a checkpoint, but it cannot be saved: %s", error)
            self._not_before = time.monotonic() + _AGAIN_S
            return
        self._notice.answer(name, epoch, batch)
        self._notice.wait_for_end()


def _write(path: str, text: str) -> None:
    """Writes a file atomically."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    draft = f"{path}.{os.getpid()}"
    with open(draft, "w") as file:
        file.write(text)
    os.rename(draft, path)
