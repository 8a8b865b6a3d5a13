"""The number of batches in an epoch, and the learning rate of each update."""

import pickle
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("examples", "batch_size", "batches"),
    [([100], 10, 10), ([109], 10, 10), ([10], 10, 1), ([105, 95], 10, 10), ([15, 15], 10, 1), ([20, 11], 10, 1)],
)
def test_batches_per_epoch(schedule: ModuleType, examples: list[int], batch_size: int, batches: int) -> None:
    assert schedule.batches_per_epoch(examples, batch_size) == batches


def test_a_part_without_a_batch_is_an_error(schedule: ModuleType) -> None:
    with pytest.raises(schedule.ScriptError, match=r"worker 1's part .* has 9 examples, less than one batch of 10"):
        schedule.batches_per_epoch([20, 9], 10)


@given(st.integers(0, 10_000), st.integers(1, 50))
def test_examples_are_split_evenly(schedule: ModuleType, examples: int, workers: int) -> None:
    parts = schedule.split_examples(examples, workers)
    assert sum(parts) == examples
    assert len(parts) == workers
    assert max(parts) - min(parts) <= 1


@pytest.mark.parametrize(
    ("macrobatch", "workers", "steps", "whole"),
    [(0, 2, 1, 7), (32, 1, 1, 7), (64, 2, 1, 7), (65, 2, 2, 6), (256, 2, 4, 4), (1024, 1, 32, 32)],
)
def test_whole_updates(schedule: ModuleType, macrobatch: int, workers: int, steps: int, whole: int) -> None:
    assert schedule.steps_per_update(macrobatch, 32, workers) == steps
    assert schedule.whole_updates(7, steps) == whole


def rates(
    schedule: ModuleType, *, warmup: int = 0, strategy: str = "linear", steps: tuple[int, ...] = ()
) -> list[float]:
    rate = schedule.LearningRate(1.0, 0.5, steps, warmup, strategy)
    return [round(rate(number), 3) for number in range(1, 11)]


def test_the_learning_rate_steps_after_an_update(schedule: ModuleType) -> None:
    assert rates(schedule) == [1.0] * 10
    assert rates(schedule, steps=(3, 8)) == [1.0] * 3 + [0.5] * 5 + [0.25] * 2
    assert rates(schedule, steps=(8, 3, 3)) == [1.0] * 3 + [0.5] * 5 + [0.25] * 2


@pytest.mark.parametrize(
    ("strategy", "rising"),
    [("linear", [0.325, 0.55, 0.775]), ("power2", [0.156, 0.325, 0.606]), ("sqrt", [0.55, 0.736, 0.879])],
)
def test_the_learning_rate_rises(schedule: ModuleType, strategy: str, rising: list[float]) -> None:
    assert rates(schedule, warmup=4, strategy=strategy) == rising + [1.0] * 7


def test_the_learning_rate_can_be_pickled(schedule: ModuleType) -> None:
    """It is pickled with the optimizer. The rate of an update is the same after unpickling and after --resume."""
    rate = schedule.LearningRate(0.1, 0.1, (20, 30), 10, "linear")
    there = pickle.loads(pickle.dumps(rate))
    assert [there(number) for number in range(1, 50)] == [rate(number) for number in range(1, 50)]
