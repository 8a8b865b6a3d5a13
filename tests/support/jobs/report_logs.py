"""Lines of a job's log, and what a report knows of them."""

from collections.abc import Iterator

from cluster.report.history import History
from node.wire import encode
from train.follow.records import join_lines

START = 1_795_000_000.0


def entry(at: float, **keys: object) -> bytes:
    return encode({"t": START + at, **keys}).removesuffix(b"\n")


def begin(ranks: int, first: int = 0) -> Iterator[bytes]:
    yield entry(0, state="starting")
    for rank in range(ranks):
        yield entry(0, p=first + rank, role="worker", host=f"node-{rank}")
        yield entry(0, p=first + rank, rank=rank)
    yield entry(0, state="running")


def speed(at: float, rank: int, value: float, more: str = "", *, epoch: int = 0) -> bytes:
    return entry(at, p=rank, line=f"Epoch[{epoch}] Batch [20-40]  Speed: {value} samples/sec{more}")


def read(*lines: bytes) -> History:
    history = History()
    history.read(join_lines(lines))
    return history
