"""One picture into one record, as mxnet/tools/im2rec.py does it: with the same library (OpenCV), so the same pixels.

The one difference: a JPEG that is at least twice as large as wanted is decoded at 1/2, 1/4 or 1/8 of its size, which is
faster and keeps more detail than a linear filter does.
"""

import shlex
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from foundation.errors import ClusterError
from mxnet_cluster.recordio import ImageRecord, encode_image, encode_record

Color = Literal["color", "gray", "unchanged"]
REQUIREMENTS = ("opencv-python-headless>=4.11", "simplejpeg>=1.8")
"""The extra `pack` of pyproject.toml."""
_REDUCTIONS = (8, 4, 2)
_START_OF_SCAN = 0xDA
# Start-of-frame markers are 0xC0 to 0xCF but for these three: https://www.w3.org/Graphics/JPEG/itu-t81.pdf, table B.1.
_NO_FRAME = (0xC4, 0xC8, 0xCC)
_ORIENTATION = (b"\x01\x12\x00\x03", b"\x12\x01\x03\x00")
"""How EXIF's orientation tag begins, in either byte order: number 0x112, of type 3."""


class PictureError(Exception):
    """A picture cannot be read, and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageOptions:
    """What becomes of a picture. resize: the length of its shorter edge in pixels, None to leave it.

    quality: 1 to 100 for jpg; for png how much is compressed, 0 to 9. pass_through: the file's bytes as they are.
    """

    resize: int | None = None
    quality: int = 95
    encoding: Literal["jpg", "png"] = "jpg"
    center_crop: bool = False
    color: Color = "color"
    pass_through: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A picture to pack: its path below the root folder, and the labels and the id of its record."""

    path: str
    labels: tuple[float, ...]
    record_id: int


def check_library() -> None:
    """Raises ClusterError, with the command that installs them, where OpenCV or simplejpeg is missing."""
    try:
        import cv2  # noqa: F401, PLC0415 - an extra: the rest of the program runs without it
        import simplejpeg  # noqa: F401, PLC0415 - the same
    except ImportError as error:
        raise ClusterError(
            f"packing pictures needs OpenCV and simplejpeg: {error}",
            # By their own names: this project's need not be in a package index.
            hint=f"{shlex.join([sys.executable, '-m', 'pip', 'install', *REQUIREMENTS])}, or --pass-through",
        ) from error


def encode_pictures(pictures: Sequence[Picture], *, root: Path, options: ImageOptions) -> list[bytes | str]:
    """For each picture its record as it stands in a file, or why the picture cannot be read."""
    results: list[bytes | str] = []
    for picture in pictures:
        try:
            image = encode_picture(root / picture.path, options)
        except PictureError as error:
            results.append(str(error))
        else:
            record = ImageRecord(labels=picture.labels, record_id=picture.record_id, image=image)
            results.append(encode_record(encode_image(record)))
    return results


def encode_picture(path: Path, options: ImageOptions) -> bytes:
    """The image for a picture's record. Raises PictureError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PictureError(error.strerror or str(error)) from error
    _check_whole(content)
    return content if options.pass_through else _transform(content, options)


def _check_whole(content: bytes) -> None:
    """Raises PictureError for an empty file and for a JPEG or PNG without its end, which OpenCV would make grey."""
    if not content:
        raise PictureError("the file is empty")
    if content.startswith(b"\xff\xd8"):
        # In the scan's data 0xff is followed by other bytes only; before it there may be a whole thumbnail.
        _, _, scan = _parse_jpeg(content)
        if content.find(b"\xff\xd9", scan) < 0:
            raise PictureError("the JPEG ends too early")
    elif content.startswith(b"\x89PNG") and b"IEND" not in content:
        raise PictureError("the PNG ends too early")


def find_size(width: int, height: int, shorter_edge: int) -> tuple[int, int]:
    """The width and height that bring the shorter edge to that length, rounded as im2rec.py rounds."""
    if height > width:
        return shorter_edge, max(height * shorter_edge // width, 1)
    return max(width * shorter_edge // height, 1), shorter_edge


def find_reduction(width: int, height: int, shorter_edge: int) -> int:
    """By how much a JPEG can be made smaller while it is decoded, without getting too small."""
    return next((by for by in _REDUCTIONS if min(width, height) // by >= shorter_edge), 1)


def _transform(content: bytes, options: ImageOptions) -> bytes:
    import cv2  # noqa: PLC0415 - check_library has said so where it is missing
    import numpy as np  # noqa: PLC0415 - comes with it

    cv2.setNumThreads(1)  # there is a process for each core already

    width, height, reduction, image = 0, 0, 1, None
    try:
        if options.color != "unchanged" and content.startswith(b"\xff\xd8"):
            width, height, scan = _parse_jpeg(content)
            reduction = find_reduction(width, height, options.resize) if options.resize else 1
            size = (-(-width // reduction), -(-height // reduction))
            image = _decode_plain_jpeg(content, scan, options.color, size)
        if image is None:
            image = cv2.imdecode(np.frombuffer(content, np.uint8), _read_flag(cv2, options.color, reduction))
        if image is None:
            raise PictureError("not a picture that OpenCV can read")
        if options.resize:
            turned = (image.shape[1] > image.shape[0]) != (width > height)  # by its EXIF orientation
            whole = (height, width) if turned else (width, height)
            if options.center_crop:
                image, whole = _crop(image), (1, 1)
            elif reduction == 1:
                whole = (image.shape[1], image.shape[0])
            image = _resize(cv2, image, find_size(*whole, options.resize))
        elif options.center_crop:
            image = _crop(image)
        parameter = cv2.IMWRITE_JPEG_QUALITY if options.encoding == "jpg" else cv2.IMWRITE_PNG_COMPRESSION
        _, encoded = cv2.imencode(f".{options.encoding}", image, [parameter, options.quality])
    except cv2.error as error:
        raise PictureError(" ".join(str(error).split())) from error
    return bytes(encoded.tobytes())


def _decode_plain_jpeg(content: bytes, scan: int, color: Color, size: tuple[int, int]) -> Any:
    """The pixels of a JPEG, whole or at a part of its size; None where it is left to OpenCV.

    OpenCV takes longer, but turns a picture by its EXIF orientation and tolerates small mistakes in a file.
    """
    import simplejpeg  # noqa: PLC0415 - comes with OpenCV, in the same extra

    header = content[:scan]
    if b"Exif\0\0" in header and any(tag in header for tag in _ORIENTATION):
        return None
    colors = "BGR" if color == "color" else "GRAY"
    try:
        image = simplejpeg.decode_jpeg(content, colors, min_width=size[0], min_height=size[1])
    except ValueError:
        return None
    return image[:, :, 0] if color == "gray" else image


def _read_flag(cv2: Any, color: Color, reduction: int) -> int:
    if color == "unchanged":
        return int(cv2.IMREAD_UNCHANGED)
    name = "COLOR" if color == "color" else "GRAYSCALE"
    return int(getattr(cv2, f"IMREAD_{name}" if reduction == 1 else f"IMREAD_REDUCED_{name}_{reduction}"))


def _resize(cv2: Any, image: Any, size: tuple[int, int]) -> Any:
    # A linear filter looks at two pixels: below half the size, it misses some.
    shrunk = min(image.shape[:2]) >= 2 * min(size)
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA if shrunk else cv2.INTER_LINEAR)


def _crop(image: Any) -> Any:
    """The square in the middle, as im2rec.py has it."""
    height, width = image.shape[:2]
    if height > width:
        margin = (height - width) // 2
        return image[margin : margin + width, :]
    margin = (width - height) // 2
    return image[:, margin : margin + height]


def _parse_jpeg(content: bytes) -> tuple[int, int, int]:
    """A JPEG's width, its height, and where its first scan begins. Raises PictureError where it has no header."""
    at, width, height = 2, 0, 0
    while at + 4 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if marker == _START_OF_SCAN and width and height:
            return width, height, at
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME and at + 9 <= len(content):
            height, width = struct.unpack_from(">HH", content, at + 5)
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    raise PictureError("the JPEG has no whole header")
