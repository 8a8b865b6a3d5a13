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
from train.data.encode import ImageOptions, PictureError, encode_picture


def encoded(path: Path, **options: Any) -> bytes:
    return encode_picture(path, ImageOptions(**options))


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
    assert pixels(encoded(path, resize=50)).shape == (75, 50, 3)
    assert pixels(encoded(path, resize=150)).shape == (225, 150, 3)


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


def test_unchanged_pictures_keep_channels_and_bits(tmp_path: Path) -> None:
    image = np.full((6, 7), 300, "uint16")
    path = tmp_path / "a.png"
    path.write_bytes(cv2.imencode(".png", image)[1].tobytes())
    assert pixels(encoded(path, color="color")).shape == (6, 7, 3)
    assert np.array_equal(pixels(encoded(path, color="unchanged", encoding="png", quality=9)), image)
