"""GPU architectures of fat binaries: synthetic ones, damaged ones, and those in a real wheel."""

import struct
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.fatbin import read_wheel
from bench.wheel_code import differences
from foundation.errors import ClusterError, NotFoundError
from provision.oracle.tables import find_wheel

Entry = tuple[int, int, int]  # kind, architecture, size of the code
PTX, ELF, OTHER = 1, 2, 8


def module(entries: Sequence[Entry]) -> bytes:
    """One fat binary. PTX entries have longer headers, as in nvcc's output."""
    body = b""
    for kind, architecture, size in entries:
        header_size = 72 if kind == PTX else 64
        header = struct.pack("<HHIQIIHHI", kind, 0x101, header_size, size, size // 2, 0, 7, 1, architecture)
        body += header.ljust(header_size, b"\0") + b"\xee" * size
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def elf(sections: Sequence[tuple[str, bytes]], *, names_first: bool = False) -> bytes:
    """A shared library with only sections, their names, and their table at the end."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _ in sections) + b".shstrtab\0"
    ordered = [(".shstrtab", names), *sections] if names_first else [*sections, (".shstrtab", names)]
    data, rows = b"\0" * 64, [b"\0" * 64]
    for name, content in ordered:
        data += b"\0" * (-len(data) % 8)
        where = names.index(name.encode() + b"\0")
        rows.append(struct.pack("<IIQQQQIIQQ", where, 1, 0, 0, len(data), len(content), 0, 0, 8, 0))
        data += content
    index = 1 if names_first else len(rows) - 1
    fields = (3, 62, 1, 0, 0, len(data), 0, 64, 0, 0, 64, len(rows), index)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HHIQQQIHHHHHH", *fields)
    return header + data[64:] + b"".join(rows)


FATBIN = (
    module([(ELF, 70, 40), (ELF, 75, 8), (PTX, 75, 16)])
    + b"\0" * 24  # padding by the linker
    + module([(ELF, 70, 8), (ELF, 120, 0), (OTHER, 90, 8)])
)
LIBRARY = elf([(".text", b"\xc3" * 100), (".nv_fatbin", FATBIN), ("__nv_relfatbin", module([(ELF, 35, 8)]))])


def wheel(folder: Path, members: dict[str, bytes], name: str = "x-1.0-py3-none-any.whl") -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return path


@pytest.mark.parametrize("packed", [True, False], ids=["wheel", "library"])
@pytest.mark.parametrize("names_first", [True])
def test_reads_architectures(tmp_path: Path, *, packed: bool, names_first: bool) -> None:
    # There is more data between the names and the table than a single read returns.
    padding = (".rodata", bytes(100_000)) if names_first else (".data", b"")
    content = elf([(".nv_fatbin", FATBIN), padding], names_first=names_first)
    if packed:
        path = wheel(tmp_path, {"mxnet/libmxnet.so": content, "mxnet/a.py": b"pass", "mxnet/x.so.txt": b"no library"})
    else:
        path = tmp_path / "libmxnet.so"
        path.write_bytes(content)
    (library,) = read_wheel(path)
    assert library.name == ("mxnet/libmxnet.so" if packed else "libmxnet.so")
    assert (library.modules, library.ptx_modules) == (2, 1)
    assert library.code == {(7, 0): 2, (7, 5): 1, (12, 0): 1}
    assert library.ptx == {(7, 5): 1}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (elf([(".nv_fatbin", b"\x01" + FATBIN)]), "expected a fat binary"),
        (LIBRARY[:-1], "truncated"),
    ],
    ids=range(2),
)
def test_rejects_damaged_libraries(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(ClusterError, match=said) as raised:
        read_wheel(wheel(tmp_path, {"mxnet/libmxnet.so": content}))
    assert "mxnet/libmxnet.so" in raised.value.message


def test_rejects_other_files(tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    with pytest.raises(NotFoundError, match="no such file"):
        read_wheel(path)
    path.write_bytes(b"not a zip file")
    with pytest.raises(ClusterError, match="cannot be read as a wheel"):
        read_wheel(path)
    with pytest.raises(ClusterError, match="cannot be read as a wheel"):
        read_wheel(tmp_path)


def test_compares_a_wheel_with_the_table(tmp_path: Path) -> None:
    known = find_wheel("mxnet-cu112==1.9.1")
    assert known is not None
    entries = [(ELF, architecture, 8) for architecture in (50, 60, 70, 80, 86)]
    for code, found in (
        (entries, ()),
        (entries[1:], ("machine code: found 60 70 80 86, the table has 50 60 70 80 86",)),
    ):
        path = wheel(tmp_path, {"mxnet/libmxnet.so": elf([(".nv_fatbin", module(code) * 198)])})
        assert differences(known, read_wheel(path)) == found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_real_wheel_matches_the_table(tmp_path: Path) -> None:
    """The smallest GPU wheel, 327 MB, from PyPI."""
    requirement = "mxnet-cu110==1.9.1"
    target = ["--no-deps", "--only-binary=:all:", "--platform=manylinux2014_x86_64", "--python-version=3.8"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", *target, "--dest", str(tmp_path), requirement]
    subprocess.run(pip, check=True)
    (path,) = tmp_path.glob("*.whl")
    known = find_wheel(requirement)
    assert known is not None
    assert differences(known, read_wheel(path)) == ()
    assert abs(path.stat().st_size - known.size_mb * 1e6) <= 1e6
