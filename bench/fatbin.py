"""Reads the GPUs for which a wheel's libraries have code, without CUDA tools.

A shared library has its GPU code in the section .nv_fatbin. The section is a sequence of fat binaries ("modules" here),
each a header and entries. Each entry is a header and code for one architecture, as machine code or PTX. The code may be
compressed; headers are not. NVIDIA does not publish the format. https://github.com/n-eiling/cuda-fatbin-decompression
describes it, and MXNet's and NVIDIA's wheels match that description exactly.

The section __nv_relfatbin is ignored: it has code for the linker, which no driver loads.
"""

import struct
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from provision.oracle.tables import Version

_ELF_MAGIC = b"\x7fELF"
_ELF_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_MODULE_MAGIC = 0xBA55ED50
_MODULE = struct.Struct("<IHHQ")  # magic, version, size of this header, size of the entries
_ENTRY = struct.Struct("<HHIQIIHHI28x")  # kind, -, size of this header, size of the code, -, -, -, -, architecture
_PTX, _MACHINE_CODE = 1, 2
# The names of sections are near the end of a file, just before the section table. One read gets both; a second read
# would have to decompress the file again from its start.
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryCode:
    """The GPU code of one library.

    code, ptx: for each compute capability, how many of its `modules` have machine code and PTX for it.
    """

    name: str
    modules: int
    code: Mapping[Version, int]
    ptx: Mapping[Version, int]


def read_wheel(path: Path) -> tuple[LibraryCode, ...]:
    """Returns the libraries with GPU code in a wheel, or in a single shared library.

    Unpacks no files. Variants for one GPU (sm_90a) count as their base (sm_90). The wheel is one from an index.
    """
    with path.open("rb") as file:
        if file.read(4) == _ELF_MAGIC:
            return tuple(_read_library(file, path.name))
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if ".so" in name.rpartition("/")[2]]
        return tuple(library for name in names for library in _read_member(archive, name))


def _read_member(archive: zipfile.ZipFile, name: str) -> Iterator[LibraryCode]:
    with archive.open(name) as member:
        if member.read(4) == _ELF_MAGIC:
            yield from _read_library(member, name)


def _read_library(file: IO[bytes], name: str) -> Iterator[LibraryCode]:
    section = _find_section(file, b".nv_fatbin")
    if section is None:
        return
    code: Counter[Version] = Counter()
    ptx: Counter[Version] = Counter()
    modules = 0
    for entries in _walk_modules(file, *section):
        modules += 1
        code.update({divmod(architecture, 10) for kind, architecture in entries if kind == _MACHINE_CODE})
        ptx.update({divmod(architecture, 10) for kind, architecture in entries if kind == _PTX})
    yield LibraryCode(name=name, modules=modules, code=dict(sorted(code.items())), ptx=dict(sorted(ptx.items())))


def _find_section(file: IO[bytes], wanted: bytes) -> tuple[int, int] | None:
    """Returns the offset and size of a section in an ELF file, or None."""
    file.seek(0)
    *_, table, _, _, _, _, entry_size, count, names_index = _ELF_HEADER.unpack(file.read(_ELF_HEADER.size))
    begin = max(0, table - _TAIL_BYTES)
    tail = _at(file, begin, table - begin + entry_size * count)
    sections = list(_SECTION.iter_unpack(tail[table - begin :]))
    _, _, _, _, names_at, names_size, *_ = sections[names_index]
    is_read = begin <= names_at
    names = tail[names_at - begin :][:names_size] if is_read else _at(file, names_at, names_size)
    for name, kind, _, _, offset, length, *_ in sections:
        if kind and names[name:].partition(b"\0")[0] == wanted:
            return offset, length
    return None


def _walk_modules(file: IO[bytes], offset: int, size: int) -> Iterator[list[tuple[int, int]]]:
    """Yields, for each module, the (kind, architecture) of its entries."""
    position, end = offset, offset + size
    while position + _MODULE.size <= end:
        magic, _, header_size, entries_size = _MODULE.unpack(_at(file, position, _MODULE.size))
        if magic == 0:  # the linker's padding
            position += 8
            continue
        if magic != _MODULE_MAGIC:
            sys.exit(f"expected a fat binary at byte {position}")
        position += header_size
        yield list(_walk_entries(file, position, position + entries_size))
        position += entries_size


def _walk_entries(file: IO[bytes], position: int, end: int) -> Iterator[tuple[int, int]]:
    while position < end:
        kind, _, header_size, code_size, *_, architecture = _ENTRY.unpack(_at(file, position, _ENTRY.size))
        yield kind, architecture
        position += header_size + code_size


def _at(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)
