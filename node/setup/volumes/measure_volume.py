"""Writes and reads a file on a volume for `cluster verify`, as the user whose jobs use it.

It arrives over stdin, followed by one line of JSON for each step, and ends with its stdin:

    {"write": path, "size_bytes": n, "seed": n}     answered by {"seconds": ...}, once the file is closed
    {"read": path, "seed": n}                       {"seconds": ..., "bytes": ..., "same": whether it is as written}
    {"remove": path}                                {"removed": path}

An error is answered by {"error": text}. It also sends {"alive": true} every two seconds.
"""

import json
import os
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.setup.messages import stay_alive, tell

BLOCK_BYTES = 1 << 20


def make_block(seed: int) -> bytes:
    """A block of bytes that cannot be compressed. The same seed gives the same block."""
    return random.Random(seed).getrandbits(8 * BLOCK_BYTES).to_bytes(BLOCK_BYTES, "little")  # noqa: S311 - no secret


def write(path: str, size_bytes: int, seed: int) -> dict[str, Any]:
    """Writes a file of whole blocks, and closes it. Returns the answer."""
    block = make_block(seed)
    began = time.monotonic()
    with open(path, "wb") as stream:
        stream.writelines(block for _ in range(size_bytes // BLOCK_BYTES))
        stream.flush()
        os.fsync(stream.fileno())
    return {"seconds": time.monotonic() - began}


def read(path: str, seed: int) -> dict[str, Any]:
    """Reads a file that `write` has written, and compares it. Returns the answer."""
    block, size, same = make_block(seed), 0, True
    began = time.monotonic()
    with open(path, "rb") as stream:
        while data := stream.read(BLOCK_BYTES):
            same = same and data == block
            size += len(data)
    return {"seconds": time.monotonic() - began, "bytes": size, "same": same}


def carry_out(order: Mapping[str, Any]) -> dict[str, Any]:
    """Does one step. Returns its answer. Raises OSError."""
    if "write" in order:
        return write(order["write"], order["size_bytes"], order["seed"])
    if "read" in order:
        return read(order["read"], order["seed"])
    Path(order["remove"]).unlink(missing_ok=True)
    return {"removed": order["remove"]}


def main() -> None:
    """Carries out steps until stdin ends."""
    stay_alive()
    for line in sys.stdin.buffer:
        try:
            tell(carry_out(json.loads(line)))
        except OSError as error:
            tell({"error": f"{error.filename}: {error.strerror}" if error.filename else str(error)})
    os._exit(0)  # does not wait for the thread, which may hold stdout's lock
