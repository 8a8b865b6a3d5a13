"""Copies the files that a job has created from its nodes to a folder on this machine.

node/job/results.py lists and sends them. A node decides about the files' content, not about where it is written.
"""

import os
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated

from msgspec import Meta, Struct

from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import on_all
from bootstrap.ssh.node_program import NodeProgram, runtime_command
from foundation.decode import decode, shorten
from foundation.errors import ClusterError
from train.s3.partial_file import PartialFile, find_file_mode, refuse_links, remove_unfinished
from train.s3.url import explain_path

MOST_FILES = 1_000_000
MAX_BLOCK_BYTES = 1 << 20
SILENCE_S = 60.0
_LENGTH = struct.Struct(">i")
FileName = Annotated[str, Meta(max_length=4096)]
Size = Annotated[int, Meta(ge=0, lt=1 << 62)]


class NodeFile(Struct, frozen=True, kw_only=True):
    """A file on a node. name: its path below the folder of the job's results. what: why it cannot be copied."""

    name: FileName
    size_bytes: Size = 0
    mtime_ns: Annotated[int, Meta(gt=-(1 << 62), lt=1 << 62)] = 0
    what: str | None = None


class _Line(NodeFile, frozen=True, kw_only=True):
    name: FileName = ""
    end: bool = False


class Listing(NodeProgram):
    """A job's files on one node: lists them now, and sends them later. Raises ConnectError, ClusterError.

    words: those of node/job/results.py.
    """

    silence_s = SILENCE_S

    def __init__(self, connection: NodeConnection, *words: str) -> None:
        super().__init__(connection, "results", command=runtime_command("results", *words, must_exist=False))
        self.name = connection.host.name
        self.files = self._read_list()

    def fetch(self, wanted: Sequence[int], write: Callable[[int, bytes | None], None]) -> dict[int, str]:
        """Receives files, by their numbers in `files`; returns those that the node cannot read, and why.

        write(number, data): receives each piece of a file, and None at its end.
        """
        self.send_message(wanted)
        refused = {}
        for number in wanted:
            left = self.files[number].size_bytes
            while length := self._read_length():
                if length < 0:
                    refused[number] = shorten(self._read_block(self._read_length()).decode("utf-8", "replace"))
                    break
                left -= length
                if left < 0:
                    raise self.invalid("more bytes than the file has")
                write(number, self._read_block(length))
            else:
                write(number, None)
        return refused

    def _read_list(self) -> tuple[NodeFile, ...]:
        """The node's list; without our programs, a node has no files."""
        files: list[NodeFile] = []
        for line in self.lines():
            try:
                entry = decode(line, _Line)
            except ValueError as error:
                raise self.invalid(error) from None
            if entry.end:
                return tuple(files)
            files.append(
                NodeFile(name=entry.name, size_bytes=entry.size_bytes, mtime_ns=entry.mtime_ns, what=entry.what)
            )
            if len(files) > MOST_FILES:
                raise ClusterError(f"{self.name}: the job has created more than {MOST_FILES} files", hint=_BY_HAND)
        if files:
            raise self.invalid("a list without an end")
        return ()

    def _read_length(self) -> int:
        return int(_LENGTH.unpack(self.read_bytes(_LENGTH.size))[0])

    def _read_block(self, length: int) -> bytes:
        if not 0 <= length <= MAX_BLOCK_BYTES:
            raise self.invalid(f"a block of {length} bytes")
        return self.read_bytes(length)


_BY_HAND = "copy the folder that you need: cluster cp NODE:PATH ."


# -- where the files go ------------------------------------------------------------------------------------------------


def find_clash(sources: Mapping[str, Collection[str]]) -> tuple[str, str, str] | None:
    """Two sources that have the same file, or one a file where the other has a folder: (one, the other, name). Pure.

    sources: the names of the files by source.
    """
    owners: dict[str, str] = {}
    for source, names in sources.items():
        for name in names:
            other = owners.setdefault(name, source)
            if other != source:
                return other, source, name
    for source, names in sources.items():
        for name in names:
            folder = next((str(folder) for folder in PurePosixPath(name).parents if str(folder) in owners), None)
            if folder is not None:
                return owners[folder], source, folder
    return None


def choose_files(files: Sequence[NodeFile], *, where: str) -> tuple[dict[int, str], list[str]]:
    """The files that can be copied, number -> name, and messages about the others. Pure."""
    chosen: dict[int, str] = {}
    left = []
    for number, file in enumerate(files):
        what = file.what or ("" if _is_possible(file.name) else "no name for a file in this folder")
        if what:
            left.append(f"{where}: {_show(file.name)}: {shorten(what)}")
        else:
            chosen[number] = file.name
    return chosen, left


def _is_possible(name: str) -> bool:
    is_text = not any("\ud800" <= character <= "\udfff" for character in name)
    return is_text and not explain_path(name)


def _show(name: str) -> str:
    return name if name.isprintable() else ascii(name)


# -- the copy ----------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Copy:
    """One node's part of a copy. names: the files to copy, number -> path below the folder."""

    listing: Listing
    names: Mapping[int, str]
    left: Sequence[str] = ()
    files: int = 0
    size_bytes: int = 0
    failed: list[str] = field(default_factory=list)
    unchanged: int = 0
    error: ClusterError | None = None


def copy_all(
    copies: Sequence[Copy],
    folder: Path,
    *,
    moved: Callable[[int], None],
) -> None:
    """Copies the files that this machine does not have with the same size and time. Never writes outside of `folder`.

    moved: receives the number of bytes that have arrived. The result is in each Copy, an error of its node included.
    Raises ClusterError if the folder cannot be written to.
    """
    planned = [folder / name for copy in copies for name in copy.names.values()]
    refuse_links(folder, planned)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished({path.parent for path in planned})
        mode = find_file_mode()
        on_all(copies, lambda copy: _copy(copy, folder, mode, moved))
    except OSError as error:
        raise ClusterError(f"cannot write to {folder}: {error.strerror or error}") from error


def _copy(copy: Copy, folder: Path, mode: int, moved: Callable[[int], None]) -> None:
    files = copy.listing.files
    wanted = [number for number, name in copy.names.items() if not _is_here(folder / name, files[number])]
    copy.unchanged = len(copy.names) - len(wanted)
    writing = _Writing(copy, folder, mode, moved)
    try:
        refused = copy.listing.fetch(wanted, writing.write)
        copy.failed += [f"{copy.listing.name}: {_show(copy.names[number])}: {why}" for number, why in refused.items()]
    except ClusterError as error:
        copy.error = error
    finally:
        writing.close()


def _is_here(path: Path, file: NodeFile) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (file.size_bytes, file.mtime_ns)


class _Writing:
    """Writes the pieces of one file after another. A file that cannot be written is reported; the others follow."""

    def __init__(self, copy: Copy, folder: Path, mode: int, moved: Callable[[int], None]) -> None:
        self._copy, self._folder, self._mode, self._moved = copy, folder, mode, moved
        self._number: int | None = None
        self._file: PartialFile | None = None
        self._offset = 0

    def write(self, number: int, data: bytes | None) -> None:
        try:
            self._write(number, data)
        except (OSError, ClusterError) as error:
            why = error.message if isinstance(error, ClusterError) else error.strerror or str(error)
            self._copy.failed.append(f"{_show(str(self._folder / self._copy.names[number]))}: {why}")
            self.close()

    def _write(self, number: int, data: bytes | None) -> None:
        if number != self._number:
            self.close()
            self._number, self._offset = number, 0
            self._file = PartialFile(self._folder / self._copy.names[number], self._mode)
        if self._file is None:  # it has failed
            return
        if data is not None:
            self._file.write(data, self._offset)
            self._offset += len(data)
            self._moved(len(data))
            return
        mtime_ns = self._copy.listing.files[number].mtime_ns
        os.utime(self._file.descriptor, ns=(mtime_ns, mtime_ns))
        self._file.publish()
        self._file = None
        self._copy.files += 1
        self._copy.size_bytes += self._offset

    def close(self) -> None:
        """Removes the file that is incomplete."""
        if self._file is not None:
            self._file.remove()
            self._file = None
