"""How many batches an epoch has, and when the learning rate steps. Does not import MXNet."""

from typing import List, Sequence, Tuple

from common.errors import ScriptError


def batches_per_epoch(examples_per_worker: Sequence[int], batch_size: int) -> int:
    """Batches that each worker does in an epoch, the same number for all.

    With dist_sync a step ends when every worker has sent its gradients: a worker with one batch more than the
    others would wait for ever. Parts of a dataset are never quite equal, so the mean counts; a worker whose
    part is smaller begins it again, and one whose part is larger goes on with the rest in the next epoch.

    Raises ScriptError where a worker's part does not fill one batch.
    """
    for rank, examples in enumerate(examples_per_worker):
        if examples < batch_size:
            raise ScriptError(
                f"worker {rank}'s part of the training data has {examples} examples, less than one batch of "
                f"{batch_size}; use a smaller --batch-size or fewer workers"
            )
    return max(1, sum(examples_per_worker) // (batch_size * len(examples_per_worker)))


def split_examples(num_examples: int, num_workers: int) -> List[int]:
    """About how many of `num_examples` each worker reads, by rank."""
    return [
        num_examples * (rank + 1) // num_workers - num_examples * rank // num_workers for rank in range(num_workers)
    ]


def learning_rate(
    start: float, factor: float, step_epochs: Sequence[int], begin_epoch: int, updates_per_epoch: int
) -> Tuple[float, List[int]]:
    """The rate at `begin_epoch`, and after how many updates from there it is multiplied with `factor`.

    updates_per_epoch: updates of one parameter in an epoch: one per batch, but one per worker and batch with
    dist_async.
    """
    epochs = sorted(set(step_epochs))
    past = [epoch for epoch in epochs if epoch <= begin_epoch]
    steps = [(epoch - begin_epoch) * updates_per_epoch for epoch in epochs if epoch > begin_epoch]
    return start * factor ** len(past), steps
