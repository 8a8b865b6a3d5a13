"""When training saves a checkpoint within an epoch. Imports neither MXNet nor PyTorch."""

import logging
import os
import sys
from typing import Callable, Optional

_CODE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
if _CODE not in sys.path:
    sys.path.append(_CODE)  # not every environment has mxnet_cluster installed, as in a container

from common.checkpoints import Position  # noqa: E402 - see above
from mxnet_cluster.interruption import Interruption  # noqa: E402 - see above

logger = logging.getLogger()
Save = Callable[[Position], str]
"""Saves a checkpoint, and returns its name. Raises ScriptError."""


class Checkpointing:
    """Saves every `every` batches, 0 for never, and once after a notice that a node of the job will be interrupted.

    batches: of an epoch. steps: of an update; a checkpoint comes after whole updates. save: None if
    nothing is saved.
    """

    def __init__(self, every: int, batches: int, steps: int, save: Optional[Save]) -> None:
        self._every, self._batches, self._steps, self._save = every, batches, steps, save
        self._interruption = Interruption()
        self._is_noticed = False

    def after_batch(self, epoch: int, batch: int) -> None:
        """This batch of this epoch is done; epochs count from 0, batches from 1. Raises ScriptError of `save`."""
        self._note_progress(epoch, batch, at_once=False)
        if self._save is None or batch % self._steps:
            return
        is_noticed = not self._is_noticed and self._interruption.has_notice()
        is_last = batch == self._batches
        if not is_noticed and (is_last or not self._every or batch % self._every):
            return  # after the last batch, the whole epoch is saved
        position = Position(epoch + 1) if is_last else Position(epoch, batch, self._batches)
        name = self._save(position)
        if is_noticed:
            self._is_noticed = True
            self._tell(name, position)

    def _tell(self, name: str, position: Position) -> None:
        """Have the job end this training, and continue from the checkpoint."""
        self._note_progress(position.epoch, position.batch, at_once=True)
        try:
            self._interruption.note_saved(name, position.epoch, position.batch)
        except OSError as error:
            logger.warning("The job does not learn of this checkpoint: %s", error)
        else:
            logger.info("A node of this job will be interrupted: waiting to continue elsewhere")
            self._interruption.wait_for_end()

    def _note_progress(self, epoch: int, batch: int, *, at_once: bool) -> None:
        try:
            self._interruption.note_progress(epoch, batch, self._batches, at_once=at_once)
        except OSError as error:  # such as a full disk: only the number of lost batches is unknown then
            logger.warning("The job does not learn of its progress: %s", error)
