"""The file with the samples of a job: bounded, and harmless on a full disk."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from node import job_folder
from node.job import samples
from node.job.samples import SampleFile, find_since, mean
from node.samples import GpuSample, ProcessSample, Sample, parse_samples


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    os.makedirs(job_folder.path("job-1"))
    return Path(job_folder.path("job-1", "samples"))


def sample(t: float, host: str = "node-0", over_s: float = 5.0, **more: Any) -> Sample:
    return Sample(t=t, host=host, over_s=over_s, **more)


def test_a_mean_is_weighted_and_leaves_out_what_is_unknown() -> None:
    first = sample(
        10,
        over_s=10,
        cpu=10.0,
        memory_total=100,
        gpus=(GpuSample(index=0, use=10, power_w=100), GpuSample(index=1)),
        processes=(ProcessSample(p=0, cpu=1, delayed=0.3), ProcessSample(p=1, cpu=2)),
    )
    second = sample(15, cpu=40.0, memory_total=100, gpus=(GpuSample(index=0, use=40),), processes=(ProcessSample(p=0),))
    assert mean([first, second]) == sample(
        15,
        over_s=15,
        cpu=20.0,
        memory_total=100,
        gpus=(GpuSample(index=0, use=20, power_w=100), GpuSample(index=1)),
        processes=(ProcessSample(p=0, cpu=0.667, delayed=0.2), ProcessSample(p=1, cpu=2)),
    )


def test_a_week_of_samples_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a smaller file and a smaller week: each day of 1/60."""
    now = [1.75e9]
    monkeypatch.setattr(samples, "LIMIT_BYTES", 1 << 15)
    monkeypatch.setattr("time.time", lambda: now[0])
    written = SampleFile("job-1", 2)
    largest = 0
    while now[0] < 1.75e9 + 7 * 86400 / 60:
        now[0] += 5
        for host in ("node-0", "node-1"):
            written.put(sample(now[0], host, cpu=50.0, processes=(ProcessSample(p=0, cpu=1.0),)))
            if written.merging is not None:
                written.merging.join()
        largest = max(largest, path.stat().st_size)
    found = [one for one in parse_samples(path.read_bytes().splitlines()) if one.host == "node-1"]
    assert largest <= (2 << 15) + 1000
    assert sum(one.over_s for one in found) == 10080  # nothing is lost
    assert {one.cpu for one in found} == {50.0}
    assert [one.over_s for one in found[-24:]] == [5.0] * 24
    assert found[0].over_s > 10
    assert sorted(parse_samples(find_since("job-1", now[0] - 10)), key=lambda one: (one.t, one.host)) == [
        sample(t, host, cpu=50.0, processes=(ProcessSample(p=0, cpu=1.0),))
        for t in (now[0] - 5, now[0])
        for host in ("node-0", "node-1")
    ]


def test_the_supervisor_does_not_wait_while_samples_are_merged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many nodes it takes longer than agents wait for a sign of life of the supervisor."""
    may_go_on, merge = threading.Event(), samples.merge
    monkeypatch.setattr(samples, "LIMIT_BYTES", 1)
    monkeypatch.setattr(samples, "merge", lambda *given: may_go_on.wait() and merge(*given))
    written = SampleFile("job-1", 1)
    for t in (5, 10, 15):
        written.put(sample(t))
    assert written.merging is not None
    may_go_on.set()
    written.merging.join()
    written.put(sample(20))
    assert sum(one.over_s for one in parse_samples(path.read_bytes().splitlines())) == 20  # nothing is lost


def test_a_full_disk_loses_samples_alone(path: Path) -> None:
    path.symlink_to("/dev/full")
    SampleFile("job-1", 1).put(sample(5))
    path.unlink()
    SampleFile("job-1", 1).put(sample(10))
    assert list(parse_samples([b"damaged", *path.read_bytes().splitlines()])) == [sample(10)]
