"""The records of a file or folder, on this machine or in S3, in Python: the same that MXNet's ImageRecordIter reads.

    from train.data.reader import iterate_records
    for payload in iterate_records("s3://bucket/train/", num_parts=4, part_index=0): ...

For other frameworks, and wherever MXNet itself is not at hand. decode_image (train/data/recordio.py) takes a payload
apart. MXNet reads a folder on this machine in the order in which its file system lists it; this sorts the names, as S3
does.
"""

from collections.abc import Iterator

from provision.errors import ClusterError
from train.data.parts import Range, find_part
from train.data.recordio import EncodedRecord, Readable, broken, decode_record, find_head, scan_records
from train.data.sources import Shard, Sources

_SEARCH_BYTES = 2**16


def iterate_records(url: str, *, num_parts: int = 1, part_index: int = 0, region: str | None = None) -> Iterator[bytes]:
    """The payload of each record in one part of the records at `url`, in their order.

    url: as ImageRecordIter's path_imgrec has it: a file, a folder (all non-empty files directly in it), or several with
    ";" between them. Over all parts of one num_parts, every record comes exactly once.

    S3 is read ahead, in up to five ranges of 8 MiB, with retries. Raises NotFoundError where there is nothing,
    ClusterError that names the file and the byte where it is cut short or is not RecordIO, AwsError, ValueError for a
    part that is none.
    """
    sources = Sources(region=region)
    shards = sources.find([word for word in url.split(";") if word], suffix="")
    for shard in shards:
        if shard.size_bytes % 4:
            raise ClusterError(
                f"{shard.name}: {shard.size_bytes} bytes are no multiple of four, so it is no RecordIO file",
                hint="every file directly in the folder is read as records: move others elsewhere",
            )
    ranges = find_part([shard.size_bytes for shard in shards], num_parts, part_index)
    return _iterate(sources, shards, ranges)


def _iterate(sources: Sources, shards: tuple[Shard, ...], ranges: tuple[Range, ...]) -> Iterator[bytes]:
    for part in ranges:
        shard = shards[part.file]
        with sources.open(shard, begin=part.begin, end=part.end) as file:
            yield from _records_from(file, part, shard)


def _records_from(file: Readable, part: Range, shard: Shard) -> Iterator[bytes]:
    """The records that begin in the range; the file stands at its begin."""
    offset = part.begin
    if offset:
        # It is somewhere in a record, which belongs to the part before, or at the beginning of one.
        searched = _read_to_head(file)
        file = _Chained(searched.content, file)
        offset += searched.offset
    records = scan_records(file, name=shard.name, offset=offset)
    while offset < min(part.end, shard.size_bytes):
        record = next(records, None)
        if record is None:
            raise broken(shard.name, offset, f"the file ends, and not after the {shard.size_bytes} bytes that it had")
        yield decode_record(record.content)
        offset += len(record.content)


def _read_to_head(file: Readable) -> EncodedRecord:
    """How many bytes it is to the next beginning of a record, and what was read from there on; empty at the end."""
    offset = 0
    window = b""
    while more := file.read(_SEARCH_BYTES):
        window += more
        at = find_head(window)
        if at is not None:
            return EncodedRecord(offset=offset + at, content=window[at:])
        # The last word may be a magic number whose length is still to come.
        offset += len(window) - 4
        window = window[-4:]
    return EncodedRecord(offset=offset + len(window), content=b"")


class _Chained:
    """Bytes that were read already, and then the file that they came from."""

    def __init__(self, first: bytes, rest: Readable) -> None:
        self._first = first
        self._rest = rest

    def read(self, size: int, /) -> bytes:
        given, self._first = self._first[:size], self._first[size:]
        return given + self._rest.read(size - len(given)) if len(given) < size else given
