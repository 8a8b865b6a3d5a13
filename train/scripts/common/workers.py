"""Joins the other workers with MXNet's kv-store, and exchanges numbers with them."""

import argparse
import functools
from typing import Any, List, NamedTuple, Sequence, Union

import mxnet as mx
import numpy as np

from common.data import Part

_BYTES = 3  # in a float32, which is exact below 2**24
_PLACES = np.array([1, 1 << 8, 1 << 16], np.float32)
_PART_NUMBERS = 1 << 22


class Workers(NamedTuple):
    """The workers of a job. store: the kv-store, or its kind if this worker is the only one. part: this worker's."""

    store: Union[str, mx.kv.KVStore]
    part: Part
    in_step: bool  # dist_sync: every step waits for all workers


def join(options: argparse.Namespace) -> Workers:
    """Joins the other workers; waits until all have joined."""
    if not options.kv_store.startswith("dist"):
        return Workers(options.kv_store, Part(0, 1), in_step=False)
    store = mx.kv.create(options.kv_store)
    if options.gc_type != "none":
        # MXNet 1.7's Module calls pushpull, which rejects compressed gradients; push and pull accept them.
        store.pushpull = functools.partial(_push_and_pull, store)
    return Workers(store, Part(store.rank, store.num_workers), in_step="async" not in options.kv_store)


def exchange(workers: Workers, name: str, numbers: Sequence[int]) -> List[List[int]]:
    """Every worker's numbers, by rank; only this worker's if they are not in step. name: unique to this exchange.

    The servers add up the pushed values, as they do gradients. numbers: below 2**24, so that float32 is exact.
    """
    if not workers.in_step:
        return [list(numbers)]
    width = len(numbers)
    table = mx.nd.zeros((workers.part.count * width,))
    workers.store.init(name, table)
    begin = workers.part.index * width
    table[begin : begin + width] = list(numbers)
    workers.store.push(name, table)
    workers.store.pull(name, out=table)
    found = [round(float(number)) for number in table.asnumpy()]
    return [found[rank * width : (rank + 1) * width] for rank in range(workers.part.count)]


def share_file(workers: Workers, name: str, path: str, *, owner: int, size: int) -> None:
    """Copies the file of the worker with the rank `owner` to this path on the other workers, which must be in step.

    name: unique to this exchange. size: in bytes, known to all workers. Raises OSError.
    """
    is_owner = workers.part.index == owner
    width = min(_PART_NUMBERS, -(-size // _BYTES))
    with open(path, "rb" if is_owner else "wb") as file:
        for begin in range(0, size, _PART_NUMBERS * _BYTES):
            content = np.zeros((width, _BYTES), np.uint8)
            length = min(size - begin, content.size)
            if is_owner:
                content.reshape(-1)[:length] = np.frombuffer(file.read(length), np.uint8)
            numbers = mx.nd.array(content.astype(np.float32) @ _PLACES)
            if not begin:
                workers.store.init(name, mx.nd.zeros((width,)))
            workers.store.push(name, numbers)
            workers.store.pull(name, out=numbers)
            if not is_owner:
                shared = numbers.asnumpy().astype("<u4").view(np.uint8).reshape(-1, 4)[:, :_BYTES]
                file.write(shared.tobytes()[:length])


def _push_and_pull(store: mx.kv.KVStore, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
    store.push(key, value, priority)
    store.pull(key, out=value if out is None else out, priority=priority)
