"""Writes records into shards: part-00000.rec, and beside it, in index/, MXNet's index (.idx) and the list (.lst)."""

from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self

from train.data.places import INDEX_FOLDER, Place


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenShard:
    """A shard as it was written; `name` is below the destination."""

    name: str
    records: int
    size_bytes: int


class ShardWriter:
    """One shard after another, in one folder of a place."""

    def __init__(self, place: Place, *, folder: str = "") -> None:
        self._place = place
        self._folder = folder
        self._file: BinaryIO | None = None
        self._index: list[str] = []
        self._lines: list[str] = []
        self.size_bytes = 0
        """Of the shard that is being written."""
        self.written: list[WrittenShard] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file:
            self._file.close()

    def add(self, content: bytes, *, key: int, line: str = "") -> None:
        """Append a record as it stands in a file. key: its number in the index; line: its line in the list."""
        if self._file is None:
            self._file = (self._place.work / "part.rec").open("wb")
        self._file.write(content)
        self._index.append(f"{key}\t{self.size_bytes}\n")
        self._lines.append(line)
        self.size_bytes += len(content)

    def cut(self) -> None:
        """The shard is complete: the place takes it. Nothing happens where it has no record."""
        if self._file is None:
            return
        self._file.close()
        stem = f"part-{len(self.written):05}"
        work = self._place.work
        files = {f"{self._folder}{INDEX_FOLDER}/{stem}.idx": work / "part.idx"}
        (work / "part.idx").write_text("".join(self._index))
        lines = "".join(self._lines)
        if lines:
            files[f"{self._folder}{INDEX_FOLDER}/{stem}.lst"] = work / "part.lst"
            (work / "part.lst").write_text(lines, encoding="utf-8", errors="surrogateescape")
        name = f"{self._folder}{stem}.rec"
        self._place.deliver({**files, name: work / "part.rec"})
        self.written.append(WrittenShard(name=name, records=len(self._index), size_bytes=self.size_bytes))
        self._file, self._index, self._lines, self.size_bytes = None, [], [], 0
