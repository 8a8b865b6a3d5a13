"""Encodes a picture as a record, like mxnet/tools/im2rec.py: the same library (OpenCV) gives the same pixels."""

import shlex
import sys
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from foundation.errors import ClusterError
from mxnet_cluster.recordio import ImageRecord, encode_image, encode_record

Color = Literal["color", "gray", "unchanged"]
REQUIREMENT = "opencv-python-headless>=4.11"
"""The extra `pack` of pyproject.toml."""


class PictureError(Exception):
    """A picture cannot be read; the message says why."""


class ImageOptions(Struct, frozen=True, kw_only=True):
    """How to encode pictures. resize: the length of the shorter edge in pixels; None: keep the size.

    quality: 1 to 100 for jpg; the compression level, 0 to 9, for png. pass_through: keep the file's bytes.
    """

    resize: int | None = None
    quality: int = 95
    encoding: Literal["jpg", "png"] = "jpg"
    center_crop: bool = False
    color: Color = "color"
    pass_through: bool = False


class Picture(Struct, frozen=True, kw_only=True):
    """A picture to pack: its path below the root folder, and its record's labels and id."""

    path: str
    labels: tuple[float, ...]
    record_id: int


def check_library() -> None:
    """Raises ClusterError, with the command to install it, if OpenCV is missing."""
    own = sys.executable
    try:
        import cv2  # noqa: F401, PLC0415 - an extra: the rest of the program runs without it
    except ImportError as error:
        raise ClusterError(
            f"packing images needs OpenCV: {error}",
            # Not this project's extra: the project may not be in a package index. Environments of uv have no pip.
            hint=f"{shlex.join([own, '-m', 'uv', 'pip', 'install', '--python', own, REQUIREMENT])}, or --pass-through",
        ) from error


def encode_picture_record(picture: Picture, *, root: Path, options: ImageOptions) -> bytes | str:
    """The picture's record, encoded as in a file, or the reason why it cannot be packed."""
    try:
        image = encode_picture(root / picture.path, options)
    except PictureError as error:
        return str(error)
    return encode_record(encode_image(ImageRecord(labels=picture.labels, record_id=picture.record_id, image=image)))


def encode_picture(path: Path, options: ImageOptions) -> bytes:
    """The encoded image of a picture's record. Raises PictureError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PictureError(error.strerror or str(error)) from error
    _check_whole(content)
    return content if options.pass_through else _transform(content, options)


def _check_whole(content: bytes) -> None:
    """Raises PictureError for an empty file, or a JPEG or PNG without its end, which OpenCV would fill with grey."""
    if not content:
        raise PictureError("the file is empty")
    # The end cannot occur in a scan's data, but in a thumbnail before it.
    if content.startswith(b"\xff\xd8") and content.find(b"\xff\xd9", content.rfind(b"\xff\xda")) < 0:
        raise PictureError("the JPEG ends too early")
    if content.startswith(b"\x89PNG") and b"IEND" not in content:
        raise PictureError("the PNG ends too early")


def _transform(content: bytes, options: ImageOptions) -> bytes:
    import cv2  # noqa: PLC0415 - check_library was called before
    import numpy as np  # noqa: PLC0415 - comes with OpenCV

    cv2.setNumThreads(1)  # each core has a thread of ours already
    flags = {"color": cv2.IMREAD_COLOR, "gray": cv2.IMREAD_GRAYSCALE, "unchanged": cv2.IMREAD_UNCHANGED}
    parameter = cv2.IMWRITE_JPEG_QUALITY if options.encoding == "jpg" else cv2.IMWRITE_PNG_COMPRESSION
    try:
        image: Any = cv2.imdecode(np.frombuffer(content, np.uint8), flags[options.color])
        if image is None:
            raise PictureError("not an image that OpenCV can read")
        if options.center_crop:
            image = _crop(image)
        if options.resize:
            image = cv2.resize(image, find_size(image.shape[1], image.shape[0], options.resize))
        _, encoded = cv2.imencode(f".{options.encoding}", image, [parameter, options.quality])
    except cv2.error as error:
        raise PictureError(" ".join(str(error).split())) from error
    return bytes(encoded.tobytes())


def find_size(width: int, height: int, shorter_edge: int) -> tuple[int, int]:
    """The width and height with a shorter edge of this length, rounded as im2rec.py rounds."""
    if height > width:
        return shorter_edge, max(height * shorter_edge // width, 1)
    return max(width * shorter_edge // height, 1), shorter_edge


def _crop(image: Any) -> Any:
    """The square in the middle, as in im2rec.py."""
    height, width = image.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return image[top : top + side, left : left + side]
