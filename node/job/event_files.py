"""Writes the numbers that workers report as TensorBoard's event files, one run for each worker.

The format: TFRecords (tensorflow/core/lib/io/record_writer.h), each with an Event (tensorflow/core/util/event.proto).
"""

import os
import struct
from collections.abc import Mapping

from node.job.scalars import Row, ScalarReader

FOLDER = "tensorboard"
READ_BYTES = 1 << 22
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reversed
_LENGTH, _VARINT, _DOUBLE, _FLOAT = 2, 0, 1, 5  # protobuf's wire types


def _make_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901
        table.append(value)
    return tuple(table)


_TABLE = _make_table()


def mask_crc(data: bytes) -> int:
    """Returns the CRC-32C of bytes, in the form that TFRecords have. Pure."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def encode_record(data: bytes) -> bytes:
    """Returns a TFRecord. Pure."""
    size = struct.pack("<Q", len(data))
    return b"".join((size, struct.pack("<I", mask_crc(size)), data, struct.pack("<I", mask_crc(data))))


def encode_event(at: float, step: int, numbers: Mapping[str, float]) -> bytes:
    """Returns an Event with a Summary of scalars. Pure."""
    values = b"".join(
        _text(1, _text(1, name.encode("utf-8", "replace")) + _float(2, numbers[name])) for name in numbers
    )
    return struct.pack("<Bd", 1 << 3 | _DOUBLE, at) + _key(2, _VARINT) + _varint(step) + _text(5, values)


def _key(field: int, kind: int) -> bytes:
    return bytes([field << 3 | kind])


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _text(field: int, data: bytes) -> bytes:
    return _key(field, _LENGTH) + _varint(len(data)) + data


def _float(field: int, value: float) -> bytes:
    return _key(field, _FLOAT) + struct.pack("<f", max(-3.4e38, min(3.4e38, value)))


class EventFiles:
    """The event files of a job, in its folder. They are the same each time that they are made from the same log."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._begin()

    def _begin(self) -> None:
        self._reader = ScalarReader()
        self._offset = 0
        self.names: dict[int, str] = {}  # of the files, by worker

    def update(self) -> None:
        """Adds the reports in the new lines of the log. Raises OSError; then the next call makes all files again."""
        try:
            self._update()
        except OSError:
            self._begin()
            raise

    def _update(self) -> None:
        with open(os.path.join(self._folder, "events"), "rb") as log:
            while data := os.pread(log.fileno(), READ_BYTES, self._offset):
                whole = data[: data.rfind(b"\n") + 1]
                if not whole:
                    return  # a line that is still being written
                self._add(whole)
                self._offset += len(whole)

    def _add(self, lines: bytes) -> None:
        new: dict[int, list[bytes]] = {}
        for row in self._reader.read(lines.splitlines()):
            if row.numbers:
                if row.worker not in self.names:
                    self._make(row)
                new.setdefault(row.worker, []).append(encode_record(encode_event(row.at, row.step, row.numbers)))
        for worker, records in new.items():
            with open(os.path.join(self._folder, self.names[worker]), "ab") as stream:
                stream.write(b"".join(records))

    def _make(self, row: Row) -> None:
        """Starts the file of a worker, with the record that names its format."""
        name = f"{FOLDER}/worker-{row.worker}/events.out.tfevents.{int(row.at)}.cluster"
        path = os.path.join(self._folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as stream:
            version = struct.pack("<Bd", 1 << 3 | _DOUBLE, row.at) + _text(3, b"brain.Event:2")
            stream.write(encode_record(version))
        self.names[row.worker] = name
