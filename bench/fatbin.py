"""Reads the GPUs for which a wheel's libraries have code, without CUDA tools.

A shared library has its GPU code in the section .nv_fatbin. The section is a sequence of fat binaries ("modules" here),
each a header and entries. Each entry is a header and code for one architecture, as machine code or PTX. The code may be
compressed; headers are not. NVIDIA does not publish the format. https://github.com/n-eiling/cuda-fatbin-decompression
describes it, and MXNet's and NVIDIA's wheels match that description exactly.

The section __nv_relfatbin is ignored: it has code for the linker, which no driver loads.
"""

import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from foundation.errors import ClusterError, NotFoundError
from provision.oracle.tables import Version

_ELF_MAGIC = b"\x7fELF"
_ELF64_LITTLE = b"\x02\x01"
_ELF_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_MODULE_MAGIC = 0xBA55ED50
_MODULE = struct.Struct("<IHHQ")  # magic, version, size of this header, size of the entries
_ENTRY = struct.Struct("<HHIQIIHHI28x")  # kind, -, size of this header, size of the code, -, -, -, -, architecture
_PTX, _MACHINE_CODE = 1, 2
# The names of sections are near the end of a file, just before the section table. One read gets both; a second read
# would have to decompress the file again from its start.
_TAIL_BYTES = 64 * 1024
_LARGEST_FILE_BYTES = 1 << 40
_MOST_SECTIONS_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryCode:
    """The GPU code of one library.

    code, ptx: for each compute capability, how many of its `modules` have machine code and PTX for it.
    ptx_modules: how many modules have any PTX.
    """

    name: str
    modules: int
    ptx_modules: int
    code: Mapping[Version, int]
    ptx: Mapping[Version, int]


def read_wheel(path: Path) -> tuple[LibraryCode, ...]:
    """Returns the libraries with GPU code in a wheel, or in a single shared library.

    Unpacks no files, and uses bounded memory. Variants for one GPU (sm_90a) count as their base (sm_90). Raises
    NotFoundError; ClusterError for an invalid file.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) == _ELF_MAGIC:
                return tuple(_read_library(file, path.name, where=str(path)))
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if ".so" in name.rpartition("/")[2]]
            return tuple(library for name in names for library in _read_member(archive, name, path))
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file", hint="pip download --no-deps mxnet-cu112==1.9.1") from None
    # For an encrypted member, zipfile raises RuntimeError; for an unknown compression its subclass NotImplementedError.
    except (OSError, EOFError, RuntimeError, UnicodeDecodeError, zipfile.BadZipFile, zlib.error) as error:
        raise ClusterError(f"{path}: cannot be read as a wheel: {error}") from error


def _read_member(archive: zipfile.ZipFile, name: str, path: Path) -> Iterator[LibraryCode]:
    with archive.open(name) as member:
        if member.read(4) == _ELF_MAGIC:
            yield from _read_library(member, name, where=f"{path}: {name}")


def _read_library(file: IO[bytes], name: str, *, where: str) -> Iterator[LibraryCode]:
    section = _find_section(file, b".nv_fatbin", where)
    if section is None:
        return
    code: Counter[Version] = Counter()
    ptx: Counter[Version] = Counter()
    modules, ptx_modules = 0, 0
    for entries in _walk_modules(file, *section, where=where):
        own_ptx = {divmod(architecture, 10) for kind, architecture in entries if kind == _PTX}
        modules += 1
        ptx_modules += bool(own_ptx)
        code.update({divmod(architecture, 10) for kind, architecture in entries if kind == _MACHINE_CODE})
        ptx.update(own_ptx)
    yield LibraryCode(
        name=name,
        modules=modules,
        ptx_modules=ptx_modules,
        code=dict(sorted(code.items())),
        ptx=dict(sorted(ptx.items())),
    )


def _find_section(file: IO[bytes], wanted: bytes, where: str) -> tuple[int, int] | None:
    """Returns the offset and size of a section in an ELF file, or None."""
    file.seek(0)
    header = _read(file, _ELF_HEADER.size, where)
    if header[4:6] != _ELF64_LITTLE:
        raise ClusterError(f"{where}: not a library for 64-bit little-endian machines")
    *_, table, _, _, _, _, entry_size, count, names_index = _ELF_HEADER.unpack(header)
    size = entry_size * count
    if not table or not count or names_index >= count or entry_size != _SECTION.size or size > _MOST_SECTIONS_BYTES:
        raise ClusterError(f"{where}: no section table (perhaps a packed file), so its code cannot be found")
    begin = max(0, table - _TAIL_BYTES)
    tail = _at(file, begin, table - begin + size, where)
    sections = list(_SECTION.iter_unpack(tail[table - begin :]))
    _, _, _, _, names_at, names_size, *_ = sections[names_index]
    if begin <= names_at and names_at + names_size <= begin + len(tail):
        names = tail[names_at - begin : names_at - begin + names_size]
    else:
        names = _at(file, names_at, min(names_size, _MOST_SECTIONS_BYTES), where)
    for name, kind, _, _, offset, length, *_ in sections:
        if kind and names[name:].partition(b"\0")[0] == wanted:
            return offset, length
    return None


def _walk_modules(file: IO[bytes], offset: int, size: int, *, where: str) -> Iterator[list[tuple[int, int]]]:
    """Yields, for each module, the (kind, architecture) of its entries."""
    position, end = offset, offset + size
    while position + _MODULE.size <= end:
        magic, _, header_size, entries_size = _MODULE.unpack(_at(file, position, _MODULE.size, where))
        if magic == 0:  # the linker's padding
            position += 8
            continue
        if magic != _MODULE_MAGIC or header_size < _MODULE.size:
            raise ClusterError(f"{where}: expected a fat binary at byte {position}")
        position += header_size
        module_end = position + entries_size
        if module_end > end:
            raise ClusterError(f"{where}: the fat binary at byte {position} is longer than its section")
        yield list(_walk_entries(file, position, module_end, where))
        position = module_end


def _walk_entries(file: IO[bytes], position: int, end: int, where: str) -> Iterator[tuple[int, int]]:
    while position < end:
        kind, _, header_size, code_size, *_, architecture = _ENTRY.unpack(_at(file, position, _ENTRY.size, where))
        if header_size < _ENTRY.size or position + header_size + code_size > end:
            raise ClusterError(f"{where}: the fat binary's entry at byte {position} is damaged")
        yield kind, architecture
        position += header_size + code_size


def _at(file: IO[bytes], offset: int, size: int, where: str) -> bytes:
    if offset > _LARGEST_FILE_BYTES:
        raise ClusterError(f"{where}: damaged: it points to its byte {offset}")
    file.seek(offset)
    return _read(file, size, where)


def _read(file: IO[bytes], size: int, where: str) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise ClusterError(f"{where}: truncated")
    return data
