"""Packs pictures into shards of records, for `cluster data pack`.

Several threads encode the pictures, for which OpenCV releases Python's lock; this one writes the records in order. The
same pictures, options and seed give the same bytes with any number of threads.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from foundation.errors import ClusterError, UsageError, list_lines
from train.data.encode import ImageOptions, Picture, encode_picture_record
from train.data.image_list import ImageList, render_line
from train.data.shards import LABELS, Destination, ShardWriter, WrittenShard

_AHEAD = 16
"""Pictures per thread that are submitted ahead of the results."""


class PackPart(Struct, frozen=True, kw_only=True):
    """The pictures for one folder of shards. folder: its name, which ends with a slash or is empty.

    shards: their number; None: cut by size.
    """

    folder: str
    images: Sequence[Picture]
    shards: int | None


class Packed(Struct, frozen=True, kw_only=True):
    """The shards that were written, and the pictures that could not be packed, each with the reason."""

    shards: list[WrittenShard]
    broken: list[str]


def plan_parts(parts: Mapping[str, Sequence[Picture]], *, shards: int | None) -> tuple[PackPart, ...]:
    """Plans the number of shards of each part, by name. Pure.

    shards: the number for the largest part; the others get a proportional number, at least one. Raises UsageError for
    more shards than pictures.
    """
    largest = max(map(len, parts.values()))
    if shards is not None and shards > largest:
        raise UsageError(f"{largest} records cannot fill {shards} shards", hint=f"--shards {largest} at most")
    return tuple(
        PackPart(
            folder=f"{name}/" if name else "",
            images=images,
            shards=None if shards is None else max(round(shards * len(images) / largest), 1),
        )
        for name, images in parts.items()
    )


def apply_pack(
    listed: ImageList,
    parts: Sequence[PackPart],
    destination: Destination,
    *,
    options: ImageOptions,
    shard_bytes: int | None,
    threads: int,
    skip_broken: bool,
    watch: Callable[[int], None],
) -> Packed:
    """Packs the pictures, in the order of the parts. watch: called with the number of pictures just packed.

    shard_bytes: the maximum size of a shard, if shards are cut by size.
    Leaves out unreadable pictures; at the end, raises ClusterError that names them, unless `skip_broken` and at least
    one picture was packed.
    """
    done = Packed(shards=[], broken=[])
    images = [image for part in parts for image in part.images]
    with closing(_encode_in_order(images, listed.root, options, threads=threads)) as results:
        for part in parts:
            with ShardWriter(destination, folder=part.folder) as writer:
                _write_part(writer, part, results, done, shard_bytes=shard_bytes, watch=watch)
            done.shards.extend(writer.written)
    if done.broken and (not skip_broken or not done.shards):
        hint = "repair or remove them, or add --skip-broken to leave them out; then run the command again"
        if not done.shards and not listed.label_names:
            hint = f"the paths of the list start at {listed.root}; --root DIR names another folder"
        what = f"{len(done.broken)} of {len(images)} images cannot be packed:{list_lines(done.broken)}"
        raise ClusterError(what, hint=hint)
    if listed.label_names:
        names = destination.work / "labels.txt"
        lines = [f"{number}\t{name}\n" for number, name in enumerate(listed.label_names)]
        names.write_text("".join(lines), encoding="utf-8", errors="surrogateescape")
        destination.deliver({LABELS: names})
    return done


def _write_part(
    writer: ShardWriter,
    part: PackPart,
    results: Iterator[bytes | str],
    done: Packed,
    *,
    shard_bytes: int | None,
    watch: Callable[[int], None],
) -> None:
    """Writes the shards of a part; adds the pictures that cannot be packed to `done`."""
    ends = {len(part.images) * number // part.shards for number in range(1, part.shards + 1)} if part.shards else ()
    for number, image in enumerate(part.images, start=1):
        result = next(results)
        if isinstance(result, str):
            done.broken.append(f"{image.path}: {result}")
        else:
            if shard_bytes and writer.size_bytes + len(result) > shard_bytes:
                writer.cut()
            writer.add(result, key=image.record_id, line=render_line(image))
        if number in ends:
            writer.cut()
        watch(1)
    writer.cut()


def _encode_in_order(
    images: Sequence[Picture], root: Path, options: ImageOptions, *, threads: int
) -> Generator[bytes | str]:
    """Yields each picture's record, or why it cannot be packed, in order."""
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[bytes | str]] = deque()
    try:
        for image in images:
            waiting.append(pool.submit(encode_picture_record, image, root=root, options=options))
            if len(waiting) >= threads * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
