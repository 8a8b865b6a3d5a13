"""MNIST's idx file format: unsigned bytes in a row, behind a header that gives their shape.

    0, 0, 0x08 (unsigned byte), number of dimensions | each dimension, 32 bits, big-endian | the bytes

Source: http://yann.lecun.com/exdb/mnist/. MXNet's MNISTIter reads images of three dimensions (count, rows,
columns) and labels of one (count).
"""

import math
import struct
from collections.abc import Sequence

from provision.errors import ClusterError

_UNSIGNED_BYTE = 0x08

# The names of MNIST's own four files.
TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
VAL_IMAGES = "t10k-images-idx3-ubyte"
VAL_LABELS = "t10k-labels-idx1-ubyte"


def encode_idx(shape: Sequence[int], content: bytes) -> bytes:
    """A whole idx file of this shape; `content` is row by row, one unsigned byte each.

    Raises ValueError where the shape does not hold exactly that many bytes.
    """
    if math.prod(shape) != len(content):
        raise ValueError(f"{len(content)} bytes do not fill the shape {tuple(shape)}")
    header = struct.pack(f">HBB{len(shape)}I", 0, _UNSIGNED_BYTE, len(shape), *shape)
    return header + content


def decode_idx(file: bytes, *, name: str) -> tuple[tuple[int, ...], bytes]:
    """The shape and the bytes, row by row, of a whole idx file.

    `name` is what an error calls the file. Raises ClusterError where it is not a whole idx file of unsigned
    bytes.
    """
    if len(file) < 4 or file[:3] != bytes([0, 0, _UNSIGNED_BYTE]):
        raise ClusterError(f"{name}: not an idx file of unsigned bytes")
    begin = 4 + 4 * file[3]
    if len(file) < begin:
        raise ClusterError(f"{name}: the idx file ends inside its header")
    shape = struct.unpack(f">{file[3]}I", file[4:begin])
    content = file[begin:]
    if math.prod(shape) != len(content):
        raise ClusterError(f"{name}: the idx header says {shape}, but {len(content)} bytes follow")
    return shape, content
