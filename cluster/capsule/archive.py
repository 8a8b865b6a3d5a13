"""The file of a capsule or of a problem report: a tree (bootstrap/transfer/tree.py), packed as one for the nodes is.

manifest.json has the size and SHA-256 of each file, capsule.json the Ingredients, record.json the job's record, log.txt
its log, and files/ the user's files. Reading distrusts the file, which others may have written.
"""

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from bootstrap.environment.file_cache import find_digest
from bootstrap.transfer.sync import SECRETS, find_files, read_sync_files
from bootstrap.transfer.tree import EXECUTABLE, PLAIN, Tree, TreeFile, file_of_bytes, make_tree, write_archive
from foundation.decode import decode
from foundation.errors import ClusterError, list_lines
from foundation.files import refuse_special
from foundation.progress import silent
from node.protocol import JobHost, JobSpec
from train.s3.url import explain_path

FORMAT, PROGRAM = 1, version("mxnet-cluster")
MANIFEST, CAPSULE, FILES = "manifest.json", "capsule.json", "files"
ERRORS = (OSError, ValueError, EOFError, tarfile.TarError, zlib.error)
MOST_TIMES = 200  # what is unpacked may have so many times the size of the archive, or ALLOWED_BYTES
ALLOWED_BYTES = 64 << 20
ALL_FILES = tuple(f"!{pattern}" for pattern in SECRETS)  # [bootstrap] exclude for files that were chosen before


class Ingredients(Struct, frozen=True, kw_only=True):
    """What a job ran with, or would run with now.

    program: the version of this program. data: size and ETag of the objects below [data] url, by name; "": the number
    of all, and the SHA-256 over them.
    """

    spec: JobSpec
    hosts: tuple[JobHost, ...] = ()
    program: str = ""
    data: dict[str, str] = {}


class Manifest(Struct, frozen=True, kw_only=True):
    """What an archive has: size in bytes and SHA-256 by name. missing: what it should have and has not, and why."""

    format: Annotated[int, Meta(ge=FORMAT, le=FORMAT)] = FORMAT
    missing: tuple[str, ...] = ()
    files: dict[str, tuple[int, str]] = {}


def write(path: Path, files: Sequence[TreeFile], missing: Sequence[str], folders: Sequence[str] = ()) -> None:
    """Writes an archive of these files and empty folders. Raises OSError, ClusterError if a file changes meanwhile."""
    listed = {file.path: (file.size_bytes, file.sha256) for file in files}
    manifest = file_of_bytes(MANIFEST, encode(Manifest(missing=tuple(missing), files=listed)))
    refuse_special(path)
    with TemporaryDirectory(dir=path.parent, prefix=".cluster-capsule-") as folder:
        write_archive(make_tree([manifest, *files], folders), Path(folder)).path.replace(path)


def encode(value: Any) -> bytes:
    """Text as it is, anything else as JSON for people: indented. Pure."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


@contextmanager
def open_capsule(path: Path) -> Iterator[tuple[Ingredients, Manifest, Path]]:
    """Unpacks a capsule to a temporary folder. Yields its content and the user's files' folder. Raises ClusterError."""
    if not path.is_file():
        what = "is a folder, not a capsule" if path.is_dir() else "there is no such file"
        raise ClusterError(f"{path}: {what}", hint="cluster capsule, which writes one")
    with TemporaryDirectory(prefix="cluster-capsule-") as temporary:
        folder = Path(temporary, "capsule")
        (folder / FILES).mkdir(parents=True)
        try:
            unpack(path, folder)
            manifest = decode((folder / MANIFEST).read_bytes(), Manifest)
            problems = list(find_differences(folder, manifest))
            ingredients = decode((folder / CAPSULE).read_bytes(), Ingredients)
        except ERRORS as error:
            message = str(error).replace(f"{folder}/", "")
            what = f"{path} is no capsule that cluster {PROGRAM} reads, or is damaged"
            raise ClusterError(f"{what}: {message}", hint="cluster capsule, which writes one") from None
        ran, found = ingredients.spec.project, read_tree(folder / FILES)
        if found.files and found.digest != ran:
            problems.append(f"{FILES}: not what the job ran (SHA-256 {found.digest[:12]}, not {(ran or 'none')[:12]})")
        if problems:
            raise ClusterError(f"{path} is damaged, or was changed after it was written:{list_lines(problems)}")
        yield ingredients, manifest, folder / FILES


def unpack(path: Path, folder: Path) -> None:
    """Unpacks an archive into a new folder: files and folders inside it, and nothing else. Raises ERRORS."""
    with gzip.open(path) as stream:
        stream.seek(max(ALLOWED_BYTES, MOST_TIMES * path.stat().st_size))
        if stream.read(1):
            raise ValueError("its content is far too large for its size")
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            is_plain = member.isdir() or (member.isreg() and not member.issparse())  # sparse: of any size, in few bytes
            why = explain_path(member.name) or ("" if is_plain else "a link, a device or a sparse file")
            if why:
                raise ValueError(f"{member.name!r}: {why}")
            target = folder / member.name
            (target if member.isdir() else target.parent).mkdir(parents=True, exist_ok=True)
            if (source := archive.extractfile(member)) is not None:
                with target.open("xb") as to:
                    shutil.copyfileobj(source, to)
                target.chmod(EXECUTABLE if member.mode & 0o100 else PLAIN)


def read_tree(folder: Path) -> Tree:
    """The tree of all files in a folder. Raises ClusterError."""
    return read_sync_files(find_files(folder, sync=["."], exclude=ALL_FILES), project_dir=folder, report=silent)


def find_differences(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yields how an archive's files differ from its manifest."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    found = {name: (path.stat().st_size, find_digest(path)) for name, path in paths.items() if name != MANIFEST}
    yield from (f"{name}: not in {MANIFEST}" for name in found if name not in manifest.files)
    yield from (f"{name}: missing" for name in manifest.files if name not in found)
    yield from (f"{name}: changed" for name in found if manifest.files.get(name, found[name]) != found[name])
