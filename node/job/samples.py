"""The samples of a job's nodes, the file `samples` in the job's folder: one JSON object per line, a samples.Sample.

The file is bounded for each node. When it is full, samples are merged into means over longer and longer intervals;
those of the last minutes stay as they are.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import json
from msgspec.structs import replace

from node import job_folder
from node.job.log_tail import lines_from_end, read_from
from node.samples import GpuSample, ProcessSample, Sample, parse_samples

LIMIT_BYTES = 1 << 20  # of the file, for each node
NEW_S = 120.0  # for those that look for stragglers
FIRST_INTERVAL_S, LAST_INTERVAL_S = 10.0, 1e6
NO_MEANS = frozenset(("t", "host", "over_s", "index", "p", "throttled", "gpus", "processes"))
T = TypeVar("T", Sample, GpuSample, ProcessSample)


class SampleFile:
    """The file of one job, for writing. nodes: how many the job has. A full disk loses samples, and nothing else."""

    def __init__(self, job: str, nodes: int) -> None:
        self._path = job_folder.path(job, "samples")
        self._limit_bytes = nodes * LIMIT_BYTES
        self._interval_s = FIRST_INTERVAL_S
        self._new: list[bytes] = []  # the lines that are not in the file yet
        self.merging: threading.Thread | None = None  # for many nodes, it takes longer than agents wait for a sign

    def put(self, sample: Sample) -> None:
        """Appends a sample, or keeps it in memory while older ones are merged."""
        self._new.append(json.encode(sample) + b"\n")
        if self.merging is not None and self.merging.is_alive():
            return
        lines, self._new = b"".join(self._new), []
        with contextlib.suppress(OSError, RuntimeError):  # such as a full disk, or no thread left
            with open(self._path, "ab", buffering=0) as stream:
                stream.write(lines)
                size = stream.tell()
            if size > self._limit_bytes:
                self.merging = threading.Thread(target=self._thin, args=(time.time() - NEW_S,), daemon=True)
                self.merging.start()

    def _thin(self, until: float) -> None:
        """Merges the samples up to a time until the file has half of its limit."""
        try:
            self._rewrite(until)
        except OSError:  # as above
            job_folder.remove(self._path + ".new")

    def _rewrite(self, until: float) -> None:
        size = self._limit_bytes
        while size > self._limit_bytes / 2 and self._interval_s < LAST_INTERVAL_S:
            with open(self._path, "rb") as old, open(self._path + ".new", "wb") as new:
                new.writelines(
                    json.encode(sample) + b"\n" for sample in merge(parse_samples(old), self._interval_s, until)
                )
                size = new.tell()
            self._interval_s *= 1 if size <= self._limit_bytes / 2 else 2
        os.replace(self._path + ".new", self._path)


def find_since(job: str, since: float) -> Iterator[bytes]:
    """Yields the lines of the samples after a time, the last one first. Raises OSError."""
    with open(job_folder.path(job, "samples"), "rb") as stream:
        for _, line in lines_from_end(read_from(stream.fileno()), os.fstat(stream.fileno()).st_size):
            sample = next(parse_samples([line]), None)
            if sample is not None and sample.t <= since:
                return
            if sample is not None:
                yield line


# -- merging -----------------------------------------------------------------------------------------------------------


def merge(samples: Iterable[Sample], interval_s: float, until: float) -> Iterator[Sample]:
    """Yields the samples, with neighbours of one node merged that are within an interval and end by `until`. Pure."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        group = groups.setdefault(sample.host, [])
        if group and (sample.t > until or sample.t - (group[0].t - group[0].over_s) > interval_s):
            yield mean(group)
            group.clear()
        group.append(sample)
    yield from sorted((mean(group) for group in groups.values() if group), key=lambda sample: sample.t)


def mean(group: Sequence[Sample]) -> Sample:
    """Returns the mean of neighbouring samples of a node, each weighted by its time. Pure."""
    if len(group) == 1:
        return group[0]
    gpus: dict[int, list[tuple[GpuSample, float]]] = {}
    processes: dict[int, list[tuple[ProcessSample, float]]] = {}
    weighted = [(sample, max(sample.over_s, 1e-3)) for sample in group]
    for sample, over_s in weighted:
        for gpu in sample.gpus:
            gpus.setdefault(gpu.index, []).append((gpu, over_s))
        for process in sample.processes:
            processes.setdefault(process.p, []).append((process, over_s))
    return replace(
        _mean(weighted),
        over_s=round(sum(sample.over_s for sample in group), 3),
        gpus=tuple(map(_mean, gpus.values())),
        processes=tuple(map(_mean, processes.values())),
    )


def _mean(parts: Sequence[tuple[T, float]]) -> T:
    """Returns the last of these, with the weighted mean of each number over those that have it."""
    means = {}
    for name in parts[-1][0].__struct_fields__:
        known = [(value, over_s) for part, over_s in parts if (value := getattr(part, name)) is not None]
        if name not in NO_MEANS and known:
            means[name] = round(sum(value * over_s for value, over_s in known) / sum(over_s for _, over_s in known), 3)
    return replace(parts[-1][0], **means)
