"""Shards cut anew, without a look into their records: what `cluster data split` does.

The records keep their bytes and their order: that of the sources as they are named, of the names in a folder or glob,
and of the records in a file. In the indexes they are numbered from 0 on, through all shards.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from foundation.errors import ClusterError, UsageError
from train.data.recordio import scan_records
from train.data.shards import Destination, ShardWriter, WrittenShard
from train.data.sources import Shard, Sources
from train.s3.url import is_s3


def check_apart(shards: Sequence[Shard], destination: str) -> None:
    """Raises UsageError where a source lies in the destination, and would be replaced while it is read."""
    folder = destination.rstrip("/") if is_s3(destination) else str(Path(destination).resolve())
    for shard in shards:
        name = shard.name if is_s3(shard.name) else str(Path(shard.name).resolve())
        if name.rpartition("/")[0] == folder:
            raise UsageError(
                f"{shard.name} is in {destination}, where the shards are to go", hint="choose another folder"
            )


def apply_split(
    sources: Sources,
    found: Sequence[Shard],
    destination: Destination,
    *,
    shards: int | None,
    shard_bytes: int | None,
    watch: Callable[[int], None],
) -> tuple[WrittenShard, ...]:
    """Cut the records of the sources into `shards` shards of about the same size, or such of `shard_bytes` at most.

    With `shards`, a record is in the shard that its first byte falls into when all bytes are cut into equal pieces;
    with `shard_bytes`, a shard ends before the record that is too much for it, and holds at least one. watch: told of
    so many more bytes. Raises ClusterError that names the file and the byte where one is broken, UsageError where a
    shard would stay empty.
    """
    total = sum(shard.size_bytes for shard in found)
    key = at = number = 0
    with ShardWriter(destination) as writer:
        for shard in found:
            with sources.open(shard) as file:
                for record in scan_records(file, name=shard.name):
                    size = len(record.content)
                    if shards is not None and at * shards // total > number:
                        writer.cut()
                        number += 1
                        _check_filled(at * shards // total, number, shards, total)
                    elif shard_bytes and writer.size_bytes and writer.size_bytes + size > shard_bytes:
                        writer.cut()
                    writer.add(record.content, key=key)
                    key, at = key + 1, at + size
                    watch(size)
        writer.cut()
        if shards is not None:
            _check_filled(shards - 1, number, shards, total)
    if at != total:
        raise ClusterError(f"the sources were changed while they were read: {at} bytes came where {total} were there")
    return tuple(writer.written)


def _check_filled(reached: int, number: int, shards: int, total: int) -> None:
    if reached > number:
        raise UsageError(
            f"the records are too long for {shards} shards of {total // shards} bytes: shard {number} would be empty",
            hint="fewer shards, or --shard-size",
        )
