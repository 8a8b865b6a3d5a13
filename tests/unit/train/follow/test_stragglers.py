"""Which worker of synchronous training the others wait for."""

from collections.abc import Sequence
from typing import Any

import pytest

from node.protocol import Process
from node.samples import GpuSample, ProcessSample, Sample
from train.follow.stragglers import find_culprit

ROLES = (
    Process(role="scheduler", host="node-0", number=0),
    Process(role="worker", host="node-0", number=1, rank=1),
    Process(role="worker", host="node-1", number=2, rank=0),
    Process(role="worker", host="node-2", number=3, rank=2),
    Process(role="setup", host="node-0", number=4),
)
Used = tuple[float, float]
"""CPU and delay of a worker, in seconds per second."""


def sampled(
    *workers: Sequence[Used], skew_s: float = 0.0, gpus: Sequence[Sequence[GpuSample]] = ((), (), ())
) -> list[Sample]:
    """Samples of 5 s: for each worker, each on its own node, one for each of its values."""
    others = (ProcessSample(p=0, cpu=5),)  # the scheduler, on the first node
    found = [
        Sample(
            t=1000 + 5 * at + skew_s * index,
            host=f"node-{index}",
            over_s=5,
            gpus=tuple(gpus[index]),
            processes=(*others[index:], ProcessSample(p=index + 1, cpu=cpu, delayed=delayed)),
        )
        for index, values in enumerate(workers)
        for at, (cpu, delayed) in enumerate(values)
    ]
    return sorted(found, key=lambda sample: sample.t)


EVEN = [(0.5, 0.1)] * 6
# Measured: train_mnist, dist_sync, two workers on two busy cores; the second has a quota of 0.3 CPUs.
MEASURED = (
    [(0.36, 0.44), (0.31, 0.35), (0.29, 0.27), (0.24, 0.52)],
    [(0.31, 0.95), (0.29, 1.07), (0.29, 1.07), (0.22, 0.86)],
)


@pytest.mark.parametrize(
    ("samples", "culprit"),
    [
        (sampled(EVEN, EVEN, EVEN), None),
        (sampled(EVEN, EVEN, [(0.9, 0.0)] * 6), 3),  # slower by itself
        (sampled(EVEN, [(0.5, 0.4)] * 6, EVEN), 2),  # others use its CPUs
        (sampled(EVEN, EVEN, [(0.7, 0.0)] * 6), None),  # not clearly
        (sampled([(0.14, 0.83)] * 5, [(0.1, 0.69)] * 5), 1),  # measured: 1.5 times the work, on two busy cores
        (sampled([(0.14, 0.808)] * 5, [(0.144, 0.828)] * 5), None),  # measured: even, there
        (sampled(EVEN, EVEN, [*EVEN[:5], (4.0, 0.0)]), None),  # a burst
        (sampled(EVEN, EVEN, [(4.0, 0.0)] * 2 + EVEN), None),  # no longer
        (sampled(EVEN, EVEN, [(0.9, 0.0)] * 2), None),  # not yet
        (sampled([(0.0, 0.0)] * 6, [(0.0, 0.0)] * 6, [(0.1, 0.0)] * 6), None),  # none computes
        ([], None),
        (sampled([*EVEN, *EVEN], [(0.9, 0)] * 12, skew_s=-3600.0), 2),  # clocks that differ
        (sampled(*(4 * row for row in MEASURED)), 2),
    ],
)
def test_the_worker_that_waits_least_is_found(samples: list[Sample], culprit: int | None) -> None:
    found = find_culprit(samples, ROLES)
    assert (found.number if found is not None else None) == culprit


def watts(power_w: float | None, **more: Any) -> list[GpuSample]:
    return [GpuSample(index=0, power_w=power_w, **more)]


@pytest.mark.parametrize(
    ("powers", "culprit"),
    [((watts(100), watts(300), watts(100)), 2), ((watts(100), watts(110), watts(100)), None),
     ((watts(None), watts(300), watts(100)), None)],
)  # fmt: skip
def test_power_counts_if_all_are_equally_busy(powers: Sequence[Sequence[GpuSample]], culprit: int | None) -> None:
    found = find_culprit(sampled(EVEN, EVEN, EVEN, gpus=powers), ROLES)
    assert (found.number if found is not None else None) == culprit


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        (sampled([(0.92, 0.0)] * 6, [(0.61, 0.0)] * 6), "waits least: it computes 92 % of the time, the others 61 %"),
        (sampled([(0.3, 0.6)] * 6, [(0.5, 0.0)] * 6), "the others 50 %; for 67 % of that, it has no CPU"),
        (sampled([(3.5, 0.0)] * 6, [(1.25, 0.0)] * 6), "3.50 of its threads compute on average, of the others' 1.25"),
        (
            sampled(EVEN, EVEN, gpus=(watts(90), watts(400, throttled="thermal"))),
            "its GPUs draw 400 W, those of the others 90 W; its clocks are lowered: thermal",
        ),
    ],
)
def test_the_reason_in_words(samples: list[Sample], why: str) -> None:
    found = find_culprit(samples, ROLES)
    assert found.why.endswith(why)


def test_a_job_of_seconds_has_none() -> None:
    """Its samples are of imports and compilation."""
    busy = sampled(EVEN[:3], EVEN[:3], [(0.9, 0.0)] * 3)
    assert find_culprit(busy, ROLES, window_s=None) is None
    longer = sampled(EVEN, EVEN, [(0.9, 0.0)] * 6)
    assert find_culprit(longer, ROLES, window_s=None) is not None
