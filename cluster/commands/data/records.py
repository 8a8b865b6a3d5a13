"""`cluster data pack, split and info`: files of records."""

import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.filesize import decimal

from cluster.app import App, pass_app
from cluster.completion import FILE_OR_URL
from cluster.views.data import counting_bar
from foundation.errors import NotFoundError, UsageError
from mxnet_cluster.sources import Sources
from provision.model import count
from train.data import image_list
from train.data.encode import ImageOptions, check_library
from train.data.info import ShardInfo, describe_shards, share_out
from train.data.pack import PackPart, apply_pack, plan_parts
from train.data.shards import WrittenShard, check_apart, open_destination, split_shards
from train.s3.url import is_s3

_SHARDS = 16
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_PNG_QUALITY = 9
_MOST_HIDDEN = 5
_MOST_LABELS = 20
"""The most labels in the text output. --json has all of them."""


def read_size(text: str) -> int:
    """Returns a number of bytes: 64MiB, 1GB, 5000. Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *(|[kmg]i?)b?", text.strip().lower())
    size = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if size <= 0:
        raise ValueError(f"{text!r} is not a size such as 256MiB, 1GB or 5000")
    return size


def read_width(text: str) -> int:
    """Returns a number of labels, 0 for "all". Raises ValueError."""
    if text != "all" and not (text.isdecimal() and int(text)):
        raise ValueError(f"{text!r} is neither a number from 1 up nor all")
    return 0 if text == "all" else int(text)


@click.command("pack")
@click.argument("source", metavar="DIR|LIST.lst", type=click.Path(path_type=Path))
@click.argument("destination", metavar="DST|s3://BUCKET/DST/", type=FILE_OR_URL)
@click.option("--shards", type=click.IntRange(1), help=f"Number of shards.  [default: {_SHARDS}]")
@click.option("--shard-size", type=read_size, metavar="SIZE", help="Or: maximum size of a shard, such as 256MiB.")
@click.option("--resize", type=click.IntRange(1), metavar="PIXELS", help="Resize the shorter edge to PIXELS.")
@click.option("--center-crop", is_flag=True, help="Crop to the square in the middle.")
@click.option("--encoding", type=click.Choice(["jpg", "png"]), default="jpg", show_default=True)
@click.option("--quality", type=click.IntRange(0, 100), help="jpg: 1 to 100 [default: 95]. png: 0 to 9 [default: 9].")
@click.option("--color", type=click.Choice(["color", "gray", "unchanged"]), default="color", show_default=True)
@click.option("--pass-through", is_flag=True, help="Pack the files unchanged.")
@click.option("--root", type=click.Path(path_type=Path, file_okay=False), help="Base folder of a list's paths.")
@click.option("--label-width", type=read_width, metavar="N|all", help="Number of a list's labels to pack.")
@click.option("--exts", default=",".join(image_list.EXTENSIONS), show_default=True, help="Extensions of image files.")
@click.option("--shuffle/--no-shuffle", default=None, help="Shuffle images.  [default: folders yes, lists no]")
@click.option("--seed", type=int, default=image_list.SEED, show_default=True, help="Seed of the shuffle.")
@click.option(
    "--train-ratio", type=float, default=1.0, show_default=True, help="Share for train/; the rest goes to val/."
)
@click.option("--test-ratio", type=float, default=0.0, show_default=True, help="Share for test/.")
@click.option("--processes", type=click.IntRange(1), help="Images to encode at a time.  [default: one per core]")
@click.option("--skip-broken", is_flag=True, help="Report and skip unreadable images without failing.")
@click.option("--replace", is_flag=True, help="Replace existing shards.")
@click.option("--create-bucket", is_flag=True, help="Create the bucket (private) if it does not exist.")
@pass_app
def pack(app: App, /, *, source: Path, destination: str, replace: bool, create_bucket: bool, **options: Any) -> None:
    """Pack folders of images into RecordIO shards.

    It writes the format of MXNet's im2rec.py, with indexes, and does not need MXNet. Each sub-folder with images is one
    label: 0, 1, 2 ... in the order of names. Each line of a list has an index, labels and a path, separated by tabs.
    Shards are DST/part-00000.rec ...; indexes and lists are in DST/index/.
    """
    image_options = _image_options(options)
    listed, parts = _plan(app, source, options)
    region = _enter(app, [destination])
    images = sum(len(part.images) for part in parts)
    folders = [part.folder for part in parts]
    with (
        counting_bar(app, "images", images, "images") as watch,
        open_destination(
            destination,
            folders=folders,
            replace=replace,
            region=region,
            create_bucket=create_bucket,
            report=app.report,
        ) as target,
    ):
        done = apply_pack(
            listed,
            parts,
            target,
            options=image_options,
            shard_bytes=options["shard_size"],
            threads=options["processes"] or os.cpu_count() or 1,
            skip_broken=options["skip_broken"],
            watch=watch,
        )
    for words in done.broken:
        app.message(f"left out: {words}")
    left_out = f", {len(done.broken)} left out" if done.broken else ""
    packed = count(images - len(done.broken), "image")
    app.message(f"packed {packed}{left_out} into {_describe(done.shards)}, in {destination}")


def _plan(app: App, source: Path, options: dict[str, Any]) -> tuple[image_list.ImageList, tuple[PackPart, ...]]:
    shards, shard_bytes = options["shards"], options["shard_size"]
    if shards and shard_bytes:
        raise UsageError("--shards and --shard-size: only one of the two decides")
    if not options["pass_through"]:
        check_library()
    mixed = options["shuffle"]
    if source.is_dir():
        if options["root"] or options["label_width"] is not None:
            raise UsageError("--root and --label-width are for lists", hint="cluster data pack LIST.lst --root DIR DST")
        extensions = ["." + word.strip().lstrip(".").lower() for word in options["exts"].split(",")]
        listed = image_list.list_folder(source, extensions=extensions)
        if listed.hidden:
            more = f" and {len(listed.hidden) - _MOST_HIDDEN} more" if len(listed.hidden) > _MOST_HIDDEN else ""
            app.message(f"skipped hidden files and folders: {', '.join(listed.hidden[:_MOST_HIDDEN])}{more}")
        mixed = True if mixed is None else mixed
    elif source.exists():
        root = options["root"] or source.parent
        listed = image_list.read_list(source, root=root, label_width=options["label_width"])
    else:
        raise NotFoundError(f"{source}: no such folder or list")
    if mixed:
        listed = image_list.shuffle(listed, seed=options["seed"])
    parts = image_list.divide(listed.images, train_ratio=options["train_ratio"], test_ratio=options["test_ratio"])
    if not shards and not shard_bytes:
        shards = min(_SHARDS, max(map(len, parts.values())))
    return listed, plan_parts(parts, shards=shards)


def _image_options(options: dict[str, Any]) -> ImageOptions:
    png = options["encoding"] == "png"
    quality = options["quality"] if options["quality"] is not None else (_PNG_QUALITY if png else 95)
    if quality > _PNG_QUALITY if png else quality < 1:
        raise UsageError(f"--quality {quality}: 1 to 100 for jpg, 0 to 9 for png")
    if options["pass_through"] and (options["resize"] or options["center_crop"]):
        raise UsageError("--pass-through leaves the images as they are: without --resize and --center-crop")
    return ImageOptions(
        resize=options["resize"],
        quality=quality,
        encoding=options["encoding"],
        center_crop=options["center_crop"],
        color=options["color"],
        pass_through=options["pass_through"],
    )


@click.command("split")
@click.argument("words", metavar="SOURCE... DST", type=FILE_OR_URL, nargs=-1, required=True)
@click.option("--shards", type=click.IntRange(1), help="Number of shards.")
@click.option("--shard-size", type=read_size, metavar="SIZE", help="Or: maximum size of a shard, such as 256MiB.")
@click.option("--replace", is_flag=True, help="Replace existing shards.")
@click.option("--create-bucket", is_flag=True, help="Create the bucket (private) if it does not exist.")
@pass_app
def split(
    app: App,
    *,
    words: tuple[str, ...],
    shards: int | None,
    shard_size: int | None,
    replace: bool,
    create_bucket: bool,
) -> None:
    """Split .rec files into shards of another number or size.

    SOURCE and DST are local or in S3. Records keep their bytes and their order. A truncated or damaged file is an error
    that names the byte.
    """
    usage = "cluster data split SOURCE... DST --shards N"
    if len(words) < 2:
        raise UsageError("a source and a destination are needed", hint=usage)
    if (shards is None) == (shard_size is None):
        raise UsageError("either --shards or --shard-size says how to cut", hint=usage)
    region = _enter(app, words)
    *names, destination = words
    sources = Sources(region=region or None)
    found = sources.find(names)
    check_apart(found, destination)
    with (
        counting_bar(app, "bytes", sum(shard.size_bytes for shard in found), "bytes") as watch,
        open_destination(
            destination,
            folders=[""],
            replace=replace,
            region=region,
            create_bucket=create_bucket,
            report=app.report,
        ) as target,
    ):
        written = split_shards(sources, found, target, shards=shards, shard_bytes=shard_size, watch=watch)
    what = f"{count(len(found), 'file')}, {count(sum(shard.records for shard in written), 'record')}"
    app.message(f"split {what}, into {_describe(written)}, in {destination}")


@click.command("info")
@click.argument("words", metavar="SOURCE...", type=FILE_OR_URL, nargs=-1, required=True)
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Also show what each of N workers reads.")
@click.option(
    "--full", is_flag=True, help="Read S3 shards completely, even with an index: shows labels, checks records."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@pass_app
def info(app: App, *, words: tuple[str, ...], workers: int | None, full: bool, as_json: bool) -> None:
    """Show records, bytes, labels and shards of .rec files.

    A truncated or damaged file is an error that names the byte.
    """
    sources = Sources(region=_enter(app, words, start=False) or None)
    found = sources.find(words)
    with counting_bar(app, "bytes", sum(shard.size_bytes for shard in found), "bytes") as watch:
        shards = describe_shards(sources, found, full=full, watch=watch)
    document = as_document(shards, workers)
    app.show("\n".join(as_lines(document, words)), document, as_json=as_json)


def _enter(app: App, words: Sequence[str], *, start: bool = True) -> str:
    """Enters the cloud and returns its region if a word is an s3:// URL; otherwise returns ""."""
    if not any(map(is_s3, words)):
        return ""
    app.enter_cloud(start_sandbox=start)
    return app.config.provision.region


def _describe(shards: Sequence[WrittenShard]) -> str:
    size = decimal(sum(shard.size_bytes for shard in shards))
    return f"{count(len(shards), 'shard')}, {size}"


def as_document(shards: Sequence[ShardInfo], workers: int | None) -> dict[str, Any]:
    """Returns the output of `cluster data info --json`. workers: also show what each of so many workers would read."""
    sizes = [size for shard in shards for size in shard.record_sizes]
    document: dict[str, Any] = {
        "records": len(sizes),
        "size_bytes": sum(shard.size_bytes for shard in shards),
        "smallest_record_bytes": min(sizes, default=0),
        "largest_record_bytes": max(sizes, default=0),
        "scanned": all(shard.labels is not None for shard in shards),
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
        document["parts"] = [{"records": records, "size_bytes": size_bytes} for records, size_bytes in parts]
    return document


def _count_labels(shards: Sequence[ShardInfo]) -> dict[str, Any]:
    widths: dict[int, int] = {}
    counts: dict[float, int] = {}
    for shard in shards:
        for labels, number in (shard.labels or {}).items():
            widths[len(labels)] = widths.get(len(labels), 0) + number
            counts[labels[0]] = counts.get(labels[0], 0) + number
    first = {_render_label(label): number for label, number in sorted(counts.items())}
    return {"widths": dict(sorted(widths.items())), "first": first}


def _render_label(label: float) -> str:
    """Returns the shortest text of at least six digits that is of no other 32-bit float."""
    texts = (f"{label:.{digits}g}" for digits in range(6, 10))
    return next((text for text in texts if struct.pack("f", float(text)) == struct.pack("f", label)), str(label))


def as_lines(document: dict[str, Any], words: Sequence[str]) -> Iterator[str]:
    """Yields the lines of text for this document."""
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
    for rank, part in enumerate(document.get("parts", ())):
        yield f"worker {rank}  {part['records']} records, {decimal(part['size_bytes'])}"
