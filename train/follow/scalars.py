"""Reads the numbers that a job's workers have reported, from its log on the head or in [data] results."""

from collections.abc import Callable, Iterator
from contextlib import closing

from node.job.scalars import Row, ScalarReader
from train.follow.head import Head
from train.follow.records import JobRecord, open_s3_log
from train.follow.run import LogStream


def read_rows(
    record: JobRecord, head: Head | None, *, results: str | None, region: str, say: Callable[[str], None]
) -> Iterator[Row]:
    """Yields the reports of a job's workers, in the order of its log; other arguments as in read_samples.

    say: receives messages about the connection. Raises ClusterError or a subclass.
    """
    reader = ScalarReader()
    if record.source == "s3" or head is None:
        yield from reader.read(open_s3_log(str(results), record.id, region=region).lines())
        return
    with closing(LogStream(head, record.id, say=say, wait=False).lines()) as lines:
        yield from reader.read(lines)
