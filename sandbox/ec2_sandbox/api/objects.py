"""S3's objects are read while they are sent. Imported at S3's first call.

moto reads a whole object for each range of it, such as each part of a download: 1 GB took a minute.
"""

from collections.abc import Iterator
from typing import Any

from moto.s3.models import FakeKey
from moto.s3.responses import S3Response

BLOCK_BYTES = 1 << 20


class Content:
    """The bytes of an object, of which moto takes the length and a slice, and the server the blocks."""

    def __init__(self, key: FakeKey) -> None:
        self._key = key

    def __len__(self) -> int:
        return self._key.size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(len(self))
        with self._key.lock:
            self._key._value_buffer.seek(start)  # noqa: SLF001 -- moto has no function that reads a part
            return self._key._value_buffer.read(stop - start)  # noqa: SLF001

    def __iter__(self) -> Iterator[bytes]:
        return (self[start : start + BLOCK_BYTES] for start in range(0, len(self), BLOCK_BYTES))


class UnreadKey:
    """An object whose value is not read yet."""

    def __init__(self, key: FakeKey) -> None:
        self._key, self.value = key, Content(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._key, name)


def get_object(self: S3Response) -> Any:
    """Answers GetObject with the object's Content."""
    key, not_modified = self._get_key()
    self._get_key = lambda: (UnreadKey(key), not_modified)  # type: ignore[method-assign,assignment,misc]
    return moto_get_object(self)


moto_get_object = S3Response.get_object
S3Response.get_object = get_object  # type: ignore[method-assign]
