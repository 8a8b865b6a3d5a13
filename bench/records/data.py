"""The records on which bench/reading.py trains."""

import random
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from bench.support.command import CLUSTER
from mxnet_cluster.recordio import ImageRecord, encode_image, encode_record

SHARDS = 4
SIZES = ((500, 375), (375, 500), (500, 333))  # of photographs


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """Images in shards.

    side: the side in pixels of the square that the network gets. write: writes the shards to a folder, with a number of
    copies of each image.
    """

    what: str
    images: int
    side: int
    batch_size: int
    write: Callable[[Path, int], None]
    shards: int = SHARDS


def write_photographs(folder: Path, repeats: int) -> None:
    """Writes photographs, packed as in the recipe for ImageNet in docs/data.md."""
    with tempfile.TemporaryDirectory(prefix="cluster-bench-") as name:
        write_images(Path(name, "photos"), PHOTOGRAPHS.images)
        words = ["photos", "packed", "--resize", "256", "--quality", "95", "--shards", str(SHARDS)]
        subprocess.run([CLUSTER, "data", "pack", *words], cwd=name, check=True, capture_output=True)
        for shard in sorted(Path(name, "packed").glob("*.rec")):
            (folder / shard.name).write_bytes(shard.read_bytes() * repeats)


def write_images(folder: Path, count: int) -> None:
    """Writes JPEGs that are cut out of two blurred patterns, each with different noise; the same in every run."""
    patterns = [np.random.default_rng(seed).integers(0, 256, (54, 80, 3), np.uint8) for seed in (1, 2)]
    photographs = [Image.fromarray(pattern).resize((640, 427), Image.Resampling.BICUBIC) for pattern in patterns]
    for number in range(count):
        source = np.random.default_rng(number)
        width, height = SIZES[source.integers(len(SIZES))]
        photograph = photographs[source.integers(2)]
        part = source.uniform(0.6, 1)
        across = int(part * min(photograph.width, photograph.height * width / height))
        down = across * height // width
        left = int(source.integers(photograph.width - across + 1))
        top = int(source.integers(photograph.height - down + 1))
        picture = photograph.crop((left, top, left + across, top + down)).resize((width, height))
        noisy = np.asarray(picture) + source.normal(0, 4, (height, width, 3))
        path = folder / f"class-{number % 10}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=92)


def write_noise(folder: Path, repeats: int) -> None:
    """Writes PNG images that cannot be compressed."""
    draw = random.Random(1)
    for shard in range(SHARDS):
        data = b"".join(encode_record(encode_image(_noise(draw, number))) for number in range(NOISE.images // SHARDS))
        (folder / f"{shard}.rec").write_bytes(data * repeats)


def _noise(draw: random.Random, number: int) -> ImageRecord:
    rows = b"".join(b"\0" + draw.randbytes(64 * 3) for _ in range(64))
    header = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b"")]
    png = b"".join(struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in chunks)
    return ImageRecord(labels=(float(number % 10),), record_id=number, image=b"\x89PNG\r\n\x1a\n" + png)


PHOTOGRAPHS = DataSet(
    what="Photographs, `--resize 256 --quality 95`, cut to 224 by 224",
    images=400,
    side=224,
    batch_size=32,
    write=write_photographs,
)
NOISE = DataSet(
    what="The hardest case, noise of 64 by 64 pixels, which takes next to no time to decode",
    images=2800,
    side=64,
    batch_size=28,
    write=write_noise,
)
