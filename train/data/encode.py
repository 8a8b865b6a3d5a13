"""Encodes a picture as a record, like mxnet/tools/im2rec.py: the same library (OpenCV) gives the same pixels.

The only difference: a JPEG that is at least twice as large as required is decoded at 1/2, 1/4 or 1/8 of its size, which
is faster and keeps more detail than a linear filter does.
"""

import io
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from PIL import ExifTags, Image

from foundation.errors import ClusterError
from mxnet_cluster.recordio import ImageRecord, encode_image, encode_record

Color = Literal["color", "gray", "unchanged"]
REQUIREMENTS = ("opencv-python-headless>=4.11", "simplejpeg>=1.8")
"""The extra `pack` of pyproject.toml."""
_REDUCTIONS = (8, 4, 2)
_MOST_BITS = {"jpg": 8, "png": 16}
_JPEG = b"\xff\xd8"


class PictureError(Exception):
    """A picture cannot be read; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageOptions:
    """How to encode pictures. resize: the length of the shorter edge in pixels; None: keep the size.

    quality: 1 to 100 for jpg; the compression level, 0 to 9, for png. pass_through: keep the file's bytes.
    """

    resize: int | None = None
    quality: int = 95
    encoding: Literal["jpg", "png"] = "jpg"
    center_crop: bool = False
    color: Color = "color"
    pass_through: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A picture to pack: its path below the root folder, and its record's labels and id."""

    path: str
    labels: tuple[float, ...]
    record_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """An encoded picture, as an image file or as a record.

    layout: its channels and their size, which all pictures must have in common; empty if it was not decoded. warning:
    such as "enlarged from 32x32".
    """

    content: bytes
    layout: str = ""
    warning: str = ""


def check_library() -> None:
    """Raises ClusterError, with the command to install them, if OpenCV or simplejpeg is missing."""
    try:
        import cv2  # noqa: F401, PLC0415 - an extra: the rest of the program runs without it
        import simplejpeg  # noqa: F401, PLC0415 - the same extra
    except ImportError as error:
        raise ClusterError(
            f"packing pictures needs OpenCV and simplejpeg: {error}",
            # Not this project's extra: the project may not be in a package index.
            hint=f"{shlex.join([sys.executable, '-m', 'pip', 'install', *REQUIREMENTS])}, or --pass-through",
        ) from error


def encode_pictures(pictures: Sequence[Picture], *, root: Path, options: ImageOptions) -> list[Encoded | str]:
    """Each picture's record, encoded as in a file, or the reason why the picture cannot be packed."""
    results: list[Encoded | str] = []
    for picture in pictures:
        try:
            image = encode_picture(root / picture.path, options)
        except PictureError as error:
            results.append(str(error))
        else:
            record = ImageRecord(labels=picture.labels, record_id=picture.record_id, image=image.content)
            results.append(replace(image, content=encode_record(encode_image(record))))
    return results


def encode_picture(path: Path, options: ImageOptions) -> Encoded:
    """The encoded image of a picture's record. Raises PictureError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PictureError(error.strerror or str(error)) from error
    _check_whole(content)
    return Encoded(content=content) if options.pass_through else _transform(content, options)


def _check_whole(content: bytes) -> None:
    """Raises PictureError for an empty file, or a JPEG or PNG without its end, which OpenCV would fill with grey."""
    if not content:
        raise PictureError("the file is empty")
    # The end cannot occur in a scan's data, but in a thumbnail before it.
    if content.startswith(_JPEG) and content.find(b"\xff\xd9", content.rfind(b"\xff\xda")) < 0:
        raise PictureError("the JPEG ends too early")
    if content.startswith(b"\x89PNG") and b"IEND" not in content:
        raise PictureError("the PNG ends too early")


def find_size(width: int, height: int, shorter_edge: int) -> tuple[int, int]:
    """The width and height with a shorter edge of this length, rounded as im2rec.py rounds."""
    if height > width:
        return shorter_edge, max(height * shorter_edge // width, 1)
    return max(width * shorter_edge // height, 1), shorter_edge


def find_reduction(width: int, height: int, shorter_edge: int) -> int:
    """The factor by which decoding may shrink a JPEG without making it too small."""
    return next((by for by in _REDUCTIONS if min(width, height) // by >= shorter_edge), 1)


def explain_loss(encoding: str, *, channels: int, bits: int) -> str:
    """Why pictures of this kind cannot be packed without loss in this encoding; empty if they can. Pure."""
    problem = ""
    if bits > _MOST_BITS[encoding]:
        problem = f"it has {bits} bits per value"
    elif encoding == "jpg" and channels not in {1, 3}:
        problem = "it has an alpha channel"
    instead = "--encoding png keeps it, " if encoding == "jpg" and bits <= _MOST_BITS["png"] else ""
    return problem and f"{problem}, which {encoding} cannot keep: {instead}--color color or gray leaves it out"


def _transform(content: bytes, options: ImageOptions) -> Encoded:
    import cv2  # noqa: PLC0415 - check_library was called before

    cv2.setNumThreads(1)  # each core has a process already
    Image.MAX_IMAGE_PIXELS = None  # Pillow reads only the headers
    try:
        image, size = _decode(cv2, content, options)
        channels, bits = 1 if image.ndim == 2 else image.shape[2], 8 * image.dtype.itemsize
        if problem := explain_loss(options.encoding, channels=channels, bits=bits):
            raise PictureError(problem)
        enlarged = options.resize and min(image.shape[:2]) < options.resize
        warning = f"enlarged from {image.shape[1]}x{image.shape[0]}" if enlarged else ""
        if options.center_crop:
            image, size = _crop(image), (1, 1)
        if options.resize:
            image = _resize(cv2, image, find_size(*size, options.resize))
        parameter = cv2.IMWRITE_JPEG_QUALITY if options.encoding == "jpg" else cv2.IMWRITE_PNG_COMPRESSION
        _, encoded = cv2.imencode(f".{options.encoding}", image, [parameter, options.quality])
    except cv2.error as error:
        raise PictureError(" ".join(str(error).split())) from error
    layout = f"{channels} x {bits} bits per pixel"
    return Encoded(content=bytes(encoded.tobytes()), layout=layout, warning=warning)


def _decode(cv2: Any, content: bytes, options: ImageOptions) -> tuple[Any, tuple[int, int]]:
    """The pixels, of a large JPEG perhaps at a fraction of its size, and the whole picture's width and height."""
    import numpy as np  # noqa: PLC0415 - comes with OpenCV

    image, whole, reduction = None, None, 1
    if options.color != "unchanged" and content.startswith(_JPEG):
        whole, turned = _read_header(content)
        reduction = find_reduction(*whole, options.resize) if options.resize else 1
        if not turned:
            image = _decode_plain_jpeg(content, options.color, [-(-length // reduction) for length in whole])
    if image is None:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), _read_flag(cv2, options.color, reduction))
    if image is None:
        raise PictureError("not a picture that OpenCV can read")
    height, width = image.shape[:2]
    if whole is None or reduction == 1:
        return image, (width, height)
    was_turned = (width > height) != (whole[0] > whole[1])
    return image, (whole[1], whole[0]) if was_turned else whole


def _read_header(content: bytes) -> tuple[tuple[int, int], bool]:
    """A JPEG's width and height, and whether its EXIF orientation turns or mirrors it. Raises PictureError."""
    try:
        with Image.open(io.BytesIO(content)) as header:
            return header.size, header.getexif().get(ExifTags.Base.Orientation, 1) != 1
    except (OSError, SyntaxError) as error:
        raise PictureError("the JPEG has no complete header") from error


def _decode_plain_jpeg(content: bytes, color: Color, size: Sequence[int]) -> Any:
    """The pixels of a JPEG, perhaps at a fraction of its size; None if OpenCV has to decode it.

    OpenCV is slower, but rotates a picture by its EXIF orientation and tolerates small errors in a file.
    """
    import simplejpeg  # noqa: PLC0415 - comes with OpenCV, in the same extra

    try:
        image = simplejpeg.decode_jpeg(
            content, "BGR" if color == "color" else "GRAY", min_width=size[0], min_height=size[1]
        )
    except ValueError:
        return None
    return image[:, :, 0] if color == "gray" else image


def _read_flag(cv2: Any, color: Color, reduction: int) -> int:
    if color == "unchanged":
        return int(cv2.IMREAD_UNCHANGED)
    name = "COLOR" if color == "color" else "GRAYSCALE"
    return int(getattr(cv2, f"IMREAD_{name}" if reduction == 1 else f"IMREAD_REDUCED_{name}_{reduction}"))


def _resize(cv2: Any, image: Any, size: tuple[int, int]) -> Any:
    # A linear filter reads two pixels: below half the size, it skips some.
    shrunk = min(image.shape[:2]) >= 2 * min(size)
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA if shrunk else cv2.INTER_LINEAR)


def _crop(image: Any) -> Any:
    """The square in the middle, as in im2rec.py."""
    height, width = image.shape[:2]
    if height > width:
        margin = (height - width) // 2
        return image[margin : margin + width, :]
    margin = (width - height) // 2
    return image[:, margin : margin + height]
