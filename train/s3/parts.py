"""Uploads and downloads of large files, in parts that are moved side by side, and that a later run goes on with."""

from collections.abc import Sequence
from typing import Protocol

PART_BYTES = 8 * 2**20
MAX_PARTS = 10_000  # S3's limit for one object


class DamagedError(Exception):
    """All parts were moved, and together they are not what they should be."""


class InParts(Protocol):
    """A large transfer. Its methods raise ClusterError's kinds and OSError."""

    def begin(self) -> Sequence[int]:
        """Make ready; returns the parts' numbers. If it raises, give_up is not called."""

    def move(self, number: int) -> int:
        """Move a part, unless it is there already; returns its size in bytes. For any thread."""

    def finish(self) -> None:
        """All parts are there: make the whole visible. Raises DamagedError."""

    def give_up(self, *, resumable: bool) -> None:
        """It has failed or was interrupted. resumable: a later run may go on with what is there."""


def part_size(size_bytes: int) -> int:
    """The size of a part for a file: PART_BYTES, or the whole MiB more that MAX_PARTS need."""
    mib = 2**20
    least = -(-size_bytes // MAX_PARTS)
    return max(PART_BYTES, -(-least // mib) * mib)
