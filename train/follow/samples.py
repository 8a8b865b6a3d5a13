"""Reads the samples of a job's nodes, from the head or, for a job in S3, from its folder of [data] results."""

import time
from collections.abc import Iterator
from contextlib import closing

from foundation.errors import NotFoundError
from node.protocol import find_first_key
from node.samples import Sample, parse_samples
from train.follow.head import ANSWER_TIMEOUT_S, Head
from train.follow.records import JobRecord, S3Log, open_s3_log

MOST_BYTES = 128 << 20  # of the newest samples


def read_samples(
    record: JobRecord, head: Head | None, *, results: str | None, region: str, since: float = 0.0
) -> list[Sample]:
    """The samples of a job after `since`, the oldest first; [] if there are none.

    since: seconds since the epoch; negative: seconds before now, by the head's clock. head: None if it cannot be
    asked. results: [data] results, if that is in S3. Raises ClusterError or a subclass.
    """
    if record.source == "head" and head is not None:
        found = list(parse_samples(_ask(head, record.id, since)))
    elif results is not None:
        found = list(parse_samples(_read(results, record.id, region)))
    else:
        found = []
    return sorted((sample for sample in found if sample.t > since), key=lambda sample: (sample.t, sample.host))


def _ask(head: Head, job: str, since: float) -> Iterator[bytes]:
    """Yields the lines that the head sends, the newest first."""
    size_bytes = 0
    with closing(head.open("samples", job, f"{since:.3f}")) as program:
        program.end_input()
        for line in program.lines(time.monotonic() + ANSWER_TIMEOUT_S):
            size_bytes += len(line)
            if find_first_key(line) == "error":
                raise head.failed(line, hint="cluster jobs")
            if size_bytes > MOST_BYTES:
                return
            yield line


def _read(results: str, job: str, region: str) -> Iterator[bytes]:
    try:
        log: S3Log = open_s3_log(results, job, region=region, name="samples")
    except NotFoundError:  # its nodes took none
        return
    yield from log.lines(max(0, log.size - MOST_BYTES))
