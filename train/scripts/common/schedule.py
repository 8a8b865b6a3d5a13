"""The number of batches in an epoch, and the learning rate of each update. Does not import MXNet."""

import argparse
from typing import List, Sequence

from common import ScriptError

_WARMUP_FROM = 0.1  # of the learning rate
_RISE = {"linear": 1.0, "power2": 2.0, "sqrt": 0.5}  # exponents


def batches_per_epoch(examples_per_worker: Sequence[int], batch_size: int) -> int:
    """The number of batches in an epoch, the same for all workers.

    With dist_sync a step ends when every worker has sent its gradients: a worker with one more batch than the others
    would wait forever. The parts of a dataset are never quite equal, so this is their mean; a worker with a smaller
    part starts it again, and one with a larger part continues with the rest in the next epoch.

    Raises ScriptError if a worker's part does not fill one batch.
    """
    for rank, examples in enumerate(examples_per_worker):
        if examples < batch_size:
            raise ScriptError(
                f"worker {rank}'s part of the training data has {examples} examples, less than one batch of "
                f"{batch_size}; use a smaller --batch-size or fewer workers"
            )
    return max(1, sum(examples_per_worker) // (batch_size * len(examples_per_worker)))


def split_examples(num_examples: int, num_workers: int) -> List[int]:
    """The approximate number of examples that each worker reads, by rank."""
    return [
        num_examples * (rank + 1) // num_workers - num_examples * rank // num_workers for rank in range(num_workers)
    ]


def steps_per_update(macrobatch_size: int, batch_size: int, num_workers: int) -> int:
    """How many steps an update needs, so that it sees at least `macrobatch_size` examples."""
    return max(1, -(-macrobatch_size // (batch_size * num_workers)))


def whole_updates(batches: int, steps: int) -> int:
    """The batches of an epoch, rounded down to whole updates, but at least one."""
    return max(steps, batches // steps * steps)


def learning_rate(options: argparse.Namespace, updates: int) -> "LearningRate":
    """The learning rate of the options. updates: per epoch."""
    steps = [epoch * updates for epoch in options.lr_step_epochs]
    return LearningRate(options.lr, options.lr_factor, steps, options.warmup_epochs * updates, options.warmup_strategy)


class LearningRate:
    """The learning rate; MXNet's optimizers call it with the number of the update, from 1 up.

    It depends only on that number, counted from the first epoch, so that a resumed training has the same rates. Servers
    create an object of this class too: they receive the optimizer.
    """

    def __init__(self, base_lr: float, factor: float, step_updates: Sequence[int], warmup: int, strategy: str) -> None:
        """base_lr is multiplied by `factor` after each of step_updates; warmup: the updates in which it first rises."""
        self.base_lr = base_lr
        self._factor = factor
        self._steps = sorted(set(step_updates))
        self._warmup = warmup
        self._exponent = _RISE[strategy]

    def __call__(self, num_update: int) -> float:
        """The rate of the update with this number."""
        rate = self.base_lr * self._factor ** sum(1 for step in self._steps if num_update > step)
        if num_update >= self._warmup:
            return rate
        return rate * (_WARMUP_FROM + (1 - _WARMUP_FROM) * (num_update / self._warmup) ** self._exponent)
