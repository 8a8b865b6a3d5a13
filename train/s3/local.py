"""What local sources hold: files, folders and globs, as `data put` is given them."""

import glob
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from provision.errors import ClusterError, NotFoundError
from train.s3.plan import FoundFile
from train.s3.url import has_glob


def find_files(sources: Sequence[str]) -> tuple[FoundFile, ...]:
    """Every file at the sources, links followed, in the sources' order and sorted within each.

    Raises NotFoundError for a source that does not exist or a glob that matches nothing, ClusterError for
    what is no regular file, for a folder without files, and for what cannot be read.
    """
    found: list[FoundFile] = []
    for source in sources:
        if not os.path.lexists(source) and has_glob(source):
            for match in _find_matches(source):
                found += _find_one(match, keep_name=not match.endswith("/"), alone=False)
        else:
            several = len(sources) > 1
            found += _find_one(source, keep_name=several and not source.endswith("/"), alone=not several)
    return tuple(found)


def _find_matches(pattern: str) -> list[str]:
    """What matches, without what is in a folder that matches itself. Raises NotFoundError where nothing does."""
    outermost: list[str] = []
    # Sorted, a folder comes before what is in it. glob and not Path.glob: the pattern may be absolute, or end with /.
    for match in sorted(glob.glob(pattern, recursive=True, include_hidden=True)):  # noqa: PTH207 - see above
        if not any(match.startswith(other.rstrip("/") + "/") for other in outermost):
            outermost.append(match)
    if not outermost:
        raise NotFoundError(f"{pattern}: no file matches")
    return outermost


def _find_one(source: str, *, keep_name: bool, alone: bool) -> list[FoundFile]:
    path = Path(source)
    if not path.is_dir():
        if source.endswith("/") and path.exists():
            raise ClusterError(f"{source}: not a folder, but its name ends with a slash")
        return [_found(path, path.name, alone=alone)]
    # resolve(): the name of "." and of "..", too.
    prefix = path.resolve().name + "/" if keep_name else ""
    files = [_found(file, prefix + name, alone=False) for file, name in _walk(path)]
    if not files and not keep_name:
        raise NotFoundError(f"{source}: the folder holds no files")
    return files


def _walk(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every file below the folder with its name from there, sorted; links to folders are followed, not in circles."""

    def refuse(error: OSError) -> None:
        raise ClusterError(f"{error.filename}: cannot be read: {error.strerror}") from error

    seen = set()
    for root, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        real = os.path.realpath(root)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        here = Path(root)
        below = "" if here == folder else here.relative_to(folder).as_posix() + "/"
        for name in sorted(names):
            yield here / name, below + name


def _found(path: Path, name: str, *, alone: bool) -> FoundFile:
    try:
        status = path.stat()
    except FileNotFoundError:
        what = "a link to nothing" if path.is_symlink() else "no such file"
        raise NotFoundError(f"{path}: {what}") from None
    except OSError as error:
        raise ClusterError(f"{path}: cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ClusterError(f"{path}: not a regular file")
    return FoundFile(path=path, name=name, size_bytes=status.st_size, alone=alone)
