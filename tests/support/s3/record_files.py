"""Files of records for tests: small images, some with payloads that are hard to read."""

import io
import random
import struct
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from mxnet_cluster.recordio import MAGIC, ImageRecord, decode_record, encode_image, encode_record, scan_records


def small_jpeg(number: int = 0) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number % 256, 80, 160)).save(file, "JPEG")
    return file.getvalue()


def image_record(number: int, *, extra: bytes = b"") -> bytes:
    """A record with this id and label; `extra` follows the image, where decoders ignore it."""
    image = small_jpeg(number) + extra
    return encode_record(encode_image(ImageRecord(labels=(float(number),), record_id=number, image=image)))


def read_records(content: bytes) -> Iterator[bytes]:
    """Every payload in a file with this content."""
    return map(decode_record, scan_records(io.BytesIO(content), name="x.rec"))


def write_uneven(folder: Path, counts: tuple[int, ...] = (23, 1, 9)) -> list[Path]:
    """Writes shards of very different sizes, with consecutive ids and records of all lengths.

    Every third record has magic numbers.
    """
    source = random.Random(7)
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    paths = []
    for shard, count in enumerate(counts):
        content = bytearray()
        for _ in range(count):
            extra = source.randbytes(source.choice([0, 1, 40, 1000, 30_000]))
            if number % 3 == 0:
                extra += (MAGIC + struct.pack("<I", 5)) * 3 + extra[:7]
            content += image_record(number, extra=extra)
            number += 1
        paths.append(folder / f"part-{shard:05}.rec")
        paths[-1].write_bytes(content)
    return paths
