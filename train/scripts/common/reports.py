"""The lines that training reports, which `cluster train` and MXNet's tools/parse_log.py read. Imports no framework."""

import logging
import sys
import time
from typing import List, Mapping, Optional

logger = logging.getLogger()


def log_as(rank: int) -> None:
    """Writes reports to standard output, in the form that parse_log.py reads."""
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format=f"%(asctime)s Node[{rank}] %(message)s",
        datefmt="%H:%M:%S",
    )  # fmt: skip


class Speedometer:
    """Reports the speed and the metrics every `every` batches, as MXNet's Speedometer does.

    batch_size: of this process, so that the processes' speeds add up.
    """

    def __init__(self, batch_size: int, every: int) -> None:
        self._batch_size = batch_size
        self._every = every
        self._last = (0, time.monotonic())

    def begin_epoch(self, batch: int = 0) -> None:
        """Restarts the clock: the time between two epochs does not count. batch: the number of finished batches."""
        self._last = (batch, time.monotonic())

    def is_due(self, batch: int) -> bool:
        """Whether to report after this batch, counted from 1."""
        return batch % self._every == 0

    def report(self, epoch: int, batch: int, metrics: Mapping[str, float]) -> None:
        """Reports the batches since the last report."""
        last_batch, last_at = self._last
        self._last = (batch, time.monotonic())
        speed = (batch - last_batch) * self._batch_size / max(self._last[1] - last_at, 1e-9)
        logger.info("Epoch[%d] Batch [%d]\tSpeed: %.2f samples/sec\t%s", epoch, batch, speed, render(metrics))


def report_epoch(epoch: int, kind: str, metrics: Mapping[str, float], cost_s: Optional[float] = None) -> None:
    """Reports an epoch's metrics, and its duration. kind: Train or Validation."""
    for name, value in metrics.items():
        logger.info("Epoch[%d] %s-%s=%f", epoch, kind, name, value)
    if cost_s is not None:
        logger.info("Epoch[%d] Time cost=%.3f", epoch, cost_s)


def render(metrics: Mapping[str, float]) -> str:
    """The metrics in one line. Pure."""
    words: List[str] = [f"{name}={value:f}" for name, value in metrics.items()]
    return "\t".join(words)
