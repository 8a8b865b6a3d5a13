"""Encoding an image as a record: sizes, crops, colours and broken images."""

import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from photos import photo, pixels
from record_files import small_jpeg
from train.data.encode import ImageOptions, PictureError, encode_picture, explain_loss, find_reduction, find_size


def encoded(path: Path, **options: Any) -> bytes:
    return encode_picture(path, ImageOptions(**options)).content


def test_sizes_are_im2recs() -> None:
    assert [find_size(500, 375, 256), find_size(375, 500, 256), find_size(7, 7, 3), find_size(1000, 1, 8)] == [
        (341, 256), (256, 341), (3, 3), (8000, 8),
    ]  # fmt: skip
    assert [find_reduction(500, 375, 256), find_reduction(512, 600, 256), find_reduction(4000, 2100, 256)] == [1, 2, 8]


def test_transformations(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    photo(300, 200).save(path, quality=95)
    assert pixels(encoded(path)).shape == (200, 300, 3)
    assert pixels(encoded(path, resize=40)).shape == (40, 60, 3)
    assert pixels(encoded(path, resize=40, center_crop=True)).shape == (40, 40, 3)
    assert pixels(encoded(path, center_crop=True, encoding="png", quality=3)).shape == (200, 200, 3)
    assert pixels(encoded(path, color="gray", resize=400)).shape == (400, 600)
    assert encoded(path, pass_through=True) == path.read_bytes()
    # center_crop keeps the middle of the picture.
    whole = pixels(encoded(path, encoding="png"))
    assert np.array_equal(pixels(encoded(path, center_crop=True, encoding="png")), whole[:, 50:250])
    turned = Image.Exif()
    turned[0x0112] = 6
    photo(300, 200).save(path, exif=turned)
    assert pixels(encoded(path, resize=50)).shape == (75, 50, 3)  # decoded at 1/4 of its size
    assert pixels(encoded(path, resize=150)).shape == (225, 150, 3)


def test_decoding_at_a_fraction_is_no_worse(tmp_path: Path) -> None:
    """Both are compared with a picture that the best filter has shrunk."""
    path = tmp_path / "a.jpg"
    photo(1200, 900).save(path, quality=95)
    best = np.asarray(photo(1200, 900).resize((341, 256), Image.Resampling.LANCZOS))[:, :, ::-1].astype(float)
    read: Any = cv2.imread(str(path))
    linear = cv2.imencode(".png", cv2.resize(read, (341, 256)))[1].tobytes()

    def error(content: bytes) -> float:
        return float(np.square(pixels(content) - best).mean())

    assert error(encoded(path, resize=256, encoding="png", quality=1)) <= error(linear)


def test_broken_jpegs(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    for content in (b"\xff\xd8", small_jpeg()[:-2], small_jpeg()[:200]):
        path.write_bytes(content)
        with pytest.raises(PictureError, match="the JPEG ends too early"):
            encoded(path)
    path.write_bytes(small_jpeg() + b"behind its end")
    assert pixels(encoded(path)).shape == (8, 8, 3)
    file = io.BytesIO()
    photo(20, 20).save(file, "PNG")
    path.write_bytes(file.getvalue()[:-12])
    with pytest.raises(PictureError, match="the PNG ends too early"):
        encoded(path)


@pytest.mark.parametrize(
    ("encoding", "channels", "bits", "said"),
    [
        ("jpg", 1, 8, ""),
        ("jpg", 3, 8, ""),
        ("jpg", 4, 8, "it has an alpha channel, which jpg cannot keep: --encoding png keeps it, --color color"),
        ("jpg", 1, 16, "it has 16 bits per value, which jpg cannot keep: --encoding png keeps it, --color color"),
        ("png", 4, 16, ""),
        ("png", 3, 32, "it has 32 bits per value, which png cannot keep: --color color"),
    ],
)
def test_pictures_that_an_encoding_cannot_keep(encoding: str, channels: int, bits: int, said: str) -> None:
    found = explain_loss(encoding, channels=channels, bits=bits)
    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.parametrize(("dtype", "channels", "layout"), [("uint8", 4, "4 x 8 bits"), ("uint16", 1, "1 x 16 bits")])
def test_unchanged_pictures_lose_nothing(tmp_path: Path, dtype: str, channels: int, layout: str) -> None:
    image = np.full((6, 7, channels), 300 if dtype == "uint16" else 7, dtype).squeeze()
    path = tmp_path / "a.png"
    path.write_bytes(cv2.imencode(".png", image)[1].tobytes())
    with pytest.raises(PictureError, match="jpg cannot keep"):
        encoded(path, color="unchanged")
    assert pixels(encoded(path, color="color")).shape == (6, 7, 3)
    kept = encode_picture(path, ImageOptions(color="unchanged", encoding="png", quality=9))
    assert np.array_equal(pixels(kept.content), image)
    assert kept.layout.startswith(layout)
