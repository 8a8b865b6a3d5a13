"""What `cluster data info` prints."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.filesize import decimal

from train.data.info import ShardInfo, share_out

_MOST_LABELS = 20
"""So many of the labels stand in a table; --json has all."""


def as_document(shards: Sequence[ShardInfo], workers: int | None) -> dict[str, Any]:
    """All of it, for JSON. workers: also what each of so many would read."""
    sizes = [size for shard in shards for size in shard.record_sizes]
    document: dict[str, Any] = {
        "records": len(sizes),
        "size_bytes": sum(shard.size_bytes for shard in shards),
        "smallest_record_bytes": min(sizes),
        "largest_record_bytes": max(sizes),
        "scanned": all(shard.scanned for shard in shards),
        "without_labels": sum(shard.without_labels for shard in shards),
        "labels": None,
        "shards": [
            {"name": shard.name, "records": len(shard.starts), "size_bytes": shard.size_bytes} for shard in shards
        ],
    }
    if document["scanned"]:
        document["labels"] = _count_labels(shards)
    if workers:
        parts = share_out(shards, workers)
        document["workers"] = [{"records": part.records, "size_bytes": part.size_bytes} for part in parts]
    return document


def _count_labels(shards: Sequence[ShardInfo]) -> dict[str, Any]:
    widths: dict[int, int] = {}
    counts: dict[float, int] = {}
    for shard in shards:
        for labels, count in (shard.labels or {}).items():
            widths[len(labels)] = widths.get(len(labels), 0) + count
            counts[labels[0]] = counts.get(labels[0], 0) + count
    return {"widths": dict(sorted(widths.items())), "first": {f"{key:g}": counts[key] for key in sorted(counts)}}


def as_lines(document: dict[str, Any], words: Sequence[str]) -> Iterator[str]:
    """The same for a reader."""
    shards = document["shards"]
    sizes = [shard["size_bytes"] for shard in shards]
    low, high = document["smallest_record_bytes"], document["largest_record_bytes"]
    yield f"{' '.join(words)}: {document['records']} records, {decimal(document['size_bytes'])}"
    yield f"shards   {len(shards)}, of {decimal(min(sizes))} to {decimal(max(sizes))}"
    yield f"records  of {decimal(low)} to {decimal(high)}"
    labels = document["labels"]
    if labels is None:
        yield "labels   not read: counted by the indexes (--full reads all)"
    else:
        widths = ", ".join(f"{width} in {count} records" for width, count in labels["widths"].items()) or "none"
        yield f"labels   {widths}; {len(labels['first'])} different values"
        for label, count in list(labels["first"].items())[:_MOST_LABELS]:
            yield f"  {label:>8}  {count}"
        if len(labels["first"]) > _MOST_LABELS:
            yield f"  and {len(labels['first']) - _MOST_LABELS} more (--json has all)"
    if document["without_labels"]:
        yield f"{document['without_labels']} records are no images of MXNet's"
    for rank, part in enumerate(document.get("workers", ())):
        yield f"worker {rank}  {part['records']} records, {decimal(part['size_bytes'])}"
