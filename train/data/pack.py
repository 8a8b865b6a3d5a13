"""Pictures into shards of records: what `cluster data pack` does.

Several processes encode the pictures, in blocks; this one writes the records in order. The same pictures, options and
seed give the same bytes, with any number of processes.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from foundation.errors import ClusterError, UsageError
from train.data.encode import Block, ImageOptions, Picture, encode_block
from train.data.image_list import ImageList, ListedImage, render_line
from train.data.shards import INDEX_FOLDER, Destination, ShardWriter, WrittenShard

Task = TypeVar("Task")
Result = TypeVar("Result")
_AHEAD = 4
"""Tasks for each process that are begun before their results are asked for."""
_BLOCK = 16
_NAMED = 20
"""So many of the pictures that cannot be read stand in an error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackPart:
    """Pictures for one folder of shards, whose name ends with a slash or is empty.

    ends: where each shard ends in the row of pictures; None where they are cut by their size.
    """

    folder: str
    images: tuple[ListedImage, ...]
    ends: tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PackPlan:
    """What is to be packed. shard_bytes: the most that a shard holds, where its end is not planned."""

    root: Path
    parts: tuple[PackPart, ...]
    options: ImageOptions
    shard_bytes: int | None
    label_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """What was packed, and the pictures that were not, each with why."""

    shards: tuple[WrittenShard, ...]
    broken: tuple[str, ...]


@dataclass(slots=True)
class _Tally:
    shards: list[WrittenShard] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def plan_pack(
    listed: ImageList,
    parts: dict[str, tuple[ListedImage, ...]],
    options: ImageOptions,
    *,
    shards: int | None,
    shard_bytes: int | None,
) -> PackPlan:
    """Which picture goes into which shard, in the order of the parts.

    shards: how many for the largest part; the others get as many as is in proportion, and at least one. Looks at the
    files' sizes where those of the records follow from them. Raises UsageError where there are fewer pictures.
    """
    largest = max(map(len, parts.values()))
    planned = []
    for name, images in parts.items():
        ends = None
        if shards is not None:
            share = shards if len(images) == largest else max(round(shards * len(images) / largest), 1)
            ends = plan_cuts(_weigh(listed.root, images, options), share)
        planned.append(PackPart(folder=f"{name}/" if name else "", images=images, ends=ends))
    return PackPlan(
        root=listed.root,
        parts=tuple(planned),
        options=options,
        shard_bytes=shard_bytes,
        label_names=listed.label_names,
    )


def apply_pack(
    plan: PackPlan, destination: Destination, *, processes: int, skip_broken: bool, watch: Callable[[int], None]
) -> Packed:
    """Pack them. watch: told of so many more pictures.

    A picture that cannot be read is left out; at the end, ClusterError names them unless `skip_broken`. Raises
    ClusterError, too, where nothing is left.
    """
    tally = _Tally()
    with closing(_encode(plan, processes)) as results:
        for part in plan.parts:
            _write_part(part, results, destination, shard_bytes=plan.shard_bytes, tally=tally, watch=watch)
    total = sum(len(part.images) for part in plan.parts)
    if tally.broken and (not skip_broken or not tally.shards):
        named = "\n  ".join(tally.broken[:_NAMED])
        more = f"\n  and {len(tally.broken) - _NAMED} more" if len(tally.broken) > _NAMED else ""
        raise ClusterError(
            f"{len(tally.broken)} of {total} pictures cannot be packed:\n  {named}{more}",
            hint="mend them or take them away, or leave them out with --skip-broken; then run the command again",
        )
    if plan.label_names:
        names = destination.work / "labels.txt"
        lines = [f"{number}\t{name}\n" for number, name in enumerate(plan.label_names)]
        names.write_text("".join(lines), encoding="utf-8", errors="surrogateescape")
        destination.deliver({f"{INDEX_FOLDER}/labels.txt": names})
    return Packed(shards=tuple(tally.shards), broken=tuple(tally.broken))


def _write_part(
    part: PackPart,
    results: Iterator[bytes | str],
    destination: Destination,
    *,
    shard_bytes: int | None,
    tally: _Tally,
    watch: Callable[[int], None],
) -> None:
    ends = frozenset(part.ends or ())
    with ShardWriter(destination, folder=part.folder) as writer:
        for number, image in enumerate(part.images, start=1):
            result = next(results)
            if isinstance(result, str):
                tally.broken.append(f"{image.path}: {result}")
            else:
                if shard_bytes and writer.size_bytes + len(result) > shard_bytes:
                    writer.cut()
                writer.add(result, key=image.index, line=render_line(image))
            if number in ends:
                writer.cut()
            watch(1)
        writer.cut()
    tally.shards += writer.written


def _encode(plan: PackPlan, processes: int) -> Generator[bytes | str]:
    """The record of each picture, or why there is none, in the order of the plan."""
    for results in map_in_order(encode_block, _blocks(plan), processes=processes):
        yield from results


def _blocks(plan: PackPlan) -> Iterator[Block]:
    row = [
        Picture(path=plan.root / image.path, labels=image.labels, record_id=image.index)
        for part in plan.parts
        for image in part.images
    ]
    for begin in range(0, len(row), _BLOCK):
        yield Block(pictures=tuple(row[begin : begin + _BLOCK]), options=plan.options)


def _weigh(root: Path, images: Sequence[ListedImage], options: ImageOptions) -> list[int]:
    """About how large the records become, to one another: all alike where pictures are made equally large."""
    if options.resize:
        return [1] * len(images)
    weights = []
    for image in images:
        try:
            weights.append((root / image.path).stat().st_size + 1)
        except OSError:  # it cannot be packed either, which is told then
            weights.append(1)
    return weights


def plan_cuts(weights: Sequence[int], shards: int) -> tuple[int, ...]:
    """Where each of `shards` consecutive groups ends, so that they weigh about the same and none is empty.

    Raises UsageError where there are fewer weights than shards.
    """
    if shards > len(weights):
        raise UsageError(f"{len(weights)} records do not fill {shards} shards", hint=f"--shards {len(weights)} at most")
    total = sum(weights)
    ends = []
    at = 0
    sums = list(accumulate(weights, initial=0))
    for number in range(1, shards):
        least, most = at + 1, len(weights) - (shards - number)
        at = least
        while at < most and (sums[at] + sums[at + 1]) * shards <= 2 * total * number:
            at += 1
        ends.append(at)
    return (*ends, len(weights))


def map_in_order(work: Callable[[Task], Result], tasks: Iterable[Task], *, processes: int) -> Iterator[Result]:
    """work(task) for each task, in the tasks' order; `work` must be a module's function.

    With one process it is done here. Raises what `work` raises, and ClusterError where a process is killed.
    """
    if processes == 1:
        yield from map(work, tasks)
        return
    # Not forked: this process has threads. A new Python takes a tenth of a second.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_parent)
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) >= processes * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise ClusterError("a process of this command was killed", hint="is there memory enough?") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """Otherwise a process whose parent was killed waits for tasks for ever. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
