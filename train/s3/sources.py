"""Finds the files and objects at the sources of a command: files, folders and globs, on this machine and in S3."""

import glob
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from foundation.errors import ClusterError, NotFoundError
from train.s3.connection import Connection
from train.s3.transfer_plan import FoundFile, FoundObject
from train.s3.url import S3Object, S3Url, compile_glob, has_glob, is_marker, literal_prefix


def find_files(sources: Sequence[str]) -> tuple[FoundFile, ...]:
    """Every file at the sources, following links, in the sources' order and sorted within each.

    `problem` says why a file cannot be read, such as a link to nothing or a FIFO. Raises NotFoundError for a source
    that does not exist, a glob without a match or a folder without files, ClusterError for a file named like a folder.
    """
    found: list[FoundFile] = []
    for source in sources:
        if not os.path.lexists(source) and has_glob(source):
            for match in _find_local_matches(source):
                found += _find_local(match, keep_name=not match.endswith("/"), alone=False)
        else:
            several = len(sources) > 1
            found += _find_local(source, keep_name=several and not source.endswith("/"), alone=not several)
    return tuple(found)


def _find_local_matches(pattern: str) -> list[str]:
    """The outermost paths that match. Raises NotFoundError if there are none."""
    outermost: list[str] = []
    plain = pattern.replace("[", "[[]")  # as in S3, where many names have brackets
    # Sorted, a folder comes before its contents. glob and not Path.glob: the pattern may be absolute, or end with /.
    for match in sorted(glob.glob(plain, recursive=True, include_hidden=True)):  # noqa: PTH207 - see above
        if not any(match.startswith(other.rstrip("/") + "/") for other in outermost):
            outermost.append(match)
    if not outermost:
        raise NotFoundError(f"{pattern}: no file matches")
    return outermost


def _find_local(source: str, *, keep_name: bool, alone: bool) -> list[FoundFile]:
    path = Path(source)
    if not path.is_dir():
        if source.endswith("/") and path.exists():
            raise ClusterError(f"{source}: not a folder, but its name ends with a slash")
        if not os.path.lexists(source):
            raise NotFoundError(f"{path}: no such file")
        return [_found_file(path, path.name, alone=alone)]
    # resolve(), because "." and ".." have no name.
    prefix = path.resolve().name + "/" if keep_name else ""
    files: list[FoundFile] = []

    def note(error: OSError) -> None:
        folder = Path(error.filename)
        name = prefix + folder.relative_to(path).as_posix()
        files.append(FoundFile(path=folder, name=name, size_bytes=0, alone=False, problem=_explain_unreadable(error)))

    files += [_found_file(file, prefix + name, alone=False) for file, name in walk_files(path, onerror=note)]
    if not files and not keep_name:
        raise NotFoundError(f"{source}: the folder has no files")
    return files


def refuse_unreadable(error: OSError) -> None:
    """Raises ClusterError that names the folder that cannot be read."""
    raise ClusterError(f"{error.filename}: {_explain_unreadable(error)}") from error


def _explain_unreadable(error: OSError) -> str:
    return f"cannot be read: {error.strerror}"


def walk_files(folder: Path, *, onerror: Callable[[OSError], None]) -> Iterator[tuple[Path, str]]:
    """Every file below the folder and its name from there, sorted; follows links to folders, but not in circles.

    onerror: called for a folder that cannot be read, with the error.
    """
    lines: dict[Path, tuple[str, ...]] = {}  # of each folder: the real paths of those above it, and its own
    for root, folders, names in os.walk(folder, followlinks=True, onerror=onerror):
        here, real = Path(root), os.path.realpath(root)
        above = lines.get(here.parent, ())
        if real in above:
            folders.clear()
            continue
        lines[here] = (*above, real)
        folders.sort()
        below = "" if here == folder else here.relative_to(folder).as_posix() + "/"
        for name in sorted(names):
            yield here / name, below + name


def _found_file(path: Path, name: str, *, alone: bool) -> FoundFile:
    size_bytes = 0
    try:
        status = path.stat()
    except FileNotFoundError as error:
        problem = "a link to nothing" if path.is_symlink() else _explain_unreadable(error)
    except OSError as error:
        problem = _explain_unreadable(error)
    else:
        problem = "" if stat.S_ISREG(status.st_mode) else "not a regular file"
        size_bytes = status.st_size
    return FoundFile(path=path, name=name, size_bytes=size_bytes, alone=alone, problem=problem)


def find_objects(connection: Connection, sources: Sequence[S3Url], *, exact: bool = False) -> tuple[FoundObject, ...]:
    """Every object at the sources, in their order. exact: also folder markers (url.is_marker), as for a deletion.

    Raises NotFoundError for a source without objects, AwsError if S3 refuses.
    """
    found: list[FoundObject] = []
    for source in sources:
        objects = _find_one(connection, source, several=len(sources) > 1, exact=exact)
        objects = [item for item in objects if exact or not is_marker(item.url.key, item.size_bytes)]
        if not objects:
            what = "no object matches" if has_glob(source.key) else "no such object or folder"
            raise NotFoundError(f"{source}: {what}", hint=f"cluster data ls s3://{source.bucket}/")
        found += objects
    return tuple(found)


def _find_one(connection: Connection, source: S3Url, *, several: bool, exact: bool) -> list[FoundObject]:
    if source.key and not source.key.endswith("/"):
        item = connection.find_object(source)
        if item is not None:
            return [_found_object(item, source.key.rpartition("/")[2], alone=not several)]
    if has_glob(source.key):
        return [_found_object(item, name, alone=False) for item, name in find_matches(connection, source, exact=exact)]
    keep_from = len(source.as_folder().key)
    if several and source.key and not source.key.endswith("/"):
        keep_from = source.key.rfind("/") + 1
    url = source.as_folder()
    return [
        _found_object(item, item.url.key[keep_from:], alone=False) for item in connection.list_objects(url, exact=exact)
    ]


def find_matches(connection: Connection, source: S3Url, *, exact: bool = False) -> list[tuple[S3Object, str]]:
    """Every object that matches a glob or is in a folder that does, with the part of its key to keep; also markers.

    Raises AwsError if S3 refuses.
    """
    pattern = compile_glob(source.key.rstrip("/"))
    folder = S3Url(bucket=source.bucket, key=literal_prefix(source.key))
    found = []
    for item in connection.list_objects(folder, exact=exact):
        name = matched_name(item.url.key, pattern, only_folders=source.key.endswith("/"))
        if name is not None:
            found.append((item, name))
    return found


def matched_name(key: str, pattern: re.Pattern[str], *, only_folders: bool) -> str | None:
    """The part of a key to keep if the key, or a folder that contains it, matches; None if neither does.

    The part begins with the name of the outermost match or, with `only_folders` (a pattern with a trailing slash),
    after it.
    """
    ends = [at for at, char in enumerate(key) if char == "/"]
    # In `name/` nothing follows the last slash, and a * does not match an empty name.
    for end in ends if only_folders or key.endswith("/") else [*ends, len(key)]:
        if pattern.fullmatch(key, 0, end):
            return key[end + 1 :] if only_folders else key[key.rfind("/", 0, end) + 1 :]
    return None


def _found_object(item: S3Object, name: str, *, alone: bool) -> FoundObject:
    return FoundObject(url=item.url, name=name, size_bytes=item.size_bytes, etag=item.etag, alone=alone)
