"""[bootstrap] sync: the user's own files and folders, as .gitignore-style patterns leave them, read into a tree."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bootstrap.exclude import ALWAYS_LEFT_OUT, Patterns
from bootstrap.tree import EXECUTABLE, PLAIN, Tree, TreeFile, make_tree
from bootstrap.tree_cache import HashCache
from provision.errors import ClusterError, ConfigError
from provision.progress import Event, Report
from provision.user_folders import home_folder

# What place_tree.py marks a whole tree with.
RESERVED = ".complete"
SHOWN = 5
WORTH_TELLING_BYTES = 200_000_000
EXCLUDE_HINT = "leave it out with [bootstrap] exclude"


@dataclass(kw_only=True, slots=True)
class Found:
    """What is to be sent, by its path below the project's folder.

    files: with where they are on this machine (a link's target, if it is one), and their status.
    folders: the empty ones. left_out: what cannot be sent and is not needed, with why.
    """

    files: dict[str, tuple[Path, os.stat_result]] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)


def find_files(project_dir: Path, *, sync: Sequence[str], exclude: Sequence[str]) -> Found:
    """What `sync` names and `exclude` leaves; symbolic links are followed within the project's folder.

    project_dir: the folder of cluster.toml, which both are relative to. Raises ConfigError for an entry that is not
    there or left out as a whole, ClusterError for what cannot be sent: links that lead outside, names that are not
    UTF-8, folders that cannot be read.
    """
    walk = _Walk(root=project_dir.resolve(), patterns=Patterns(exclude))
    for entry in sorted({os.path.normpath(entry) for entry in sync}):
        walk.check_entry(entry)
        walk.visit(entry, walk.root / entry, ())
    return walk.found


def read_found(found: Found, *, project_dir: Path, cache: Path, report: Report) -> Tree:
    """Hash the files that are new or changed, and make the tree of all. Raises ClusterError."""
    _tell_left_out(sorted(set(found.left_out)), report)
    hashes = HashCache(cache, project_dir.resolve())
    unread = sum(status.st_size for path, (_, status) in found.files.items() if not hashes.knows(path, status))
    if unread > WORTH_TELLING_BYTES:
        report(Event(kind="info", what=f"reading {unread / 1e6:.0f} MB of new and changed files in {project_dir}"))
    files = [_read_file(path, file, status, hashes) for path, (file, status) in found.files.items()]
    hashes.save()
    return make_tree(files, found.folders)


def _read_file(path: str, file: Path, status: os.stat_result, hashes: HashCache) -> TreeFile:
    hashed = hashes.hash_file(path, file, status)
    mode = EXECUTABLE if status.st_mode & 0o111 else PLAIN
    return TreeFile(path=path, sha256=hashed.sha256, size_bytes=hashed.size_bytes, mode=mode, source=file)


def _tell_left_out(left_out: Sequence[str], report: Report) -> None:
    for line in left_out[:SHOWN]:
        report(Event(kind="warn", what=f"not sent: {line}"))
    if len(left_out) > SHOWN:
        report(Event(kind="warn", what=f"not sent: {len(left_out) - SHOWN} more like these"))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Walk:
    """One walk over what is to be sent. root: absolute, without links."""

    root: Path
    patterns: Patterns
    found: Found = field(default_factory=Found)

    def check_entry(self, entry: str) -> None:
        """Refuse an entry of `sync` of which nothing would be sent, or far too much. Raises ConfigError."""
        path = self.root / entry
        if not os.path.lexists(path):
            raise ConfigError(f'bootstrap.sync = "{entry}": there is no such file or folder in {self.root}')
        left_out = self.find_left_out(path)
        if left_out is not None:
            raise ConfigError(
                f'bootstrap.sync = "{entry}": nothing of it would be sent: {left_out} is left out',
                hint=f"change [bootstrap] exclude; always left out are {', '.join(ALWAYS_LEFT_OUT)}",
            )
        if home_folder().resolve().is_relative_to(path.resolve()):
            raise ConfigError(
                f'bootstrap.sync = "{entry}": your whole home folder, keys and passwords too, is in {path.resolve()}',
                hint="put cluster.toml and what is to be sent into a folder of their own",
            )

    def find_left_out(self, place: Path) -> str | None:
        """What a pattern leaves out of a path below the root and of the folders above it; None where nothing is."""
        parts = place.relative_to(self.root).parts
        for count in range(1, len(parts) + 1):
            above = "/".join(parts[:count])
            if self.patterns.leave_out(above, is_folder=(self.root / above).is_dir()):
                return above
        return None

    def visit(self, path: str, place: Path, above: tuple[tuple[int, int], ...]) -> None:
        """Take a path, with all that is below it.

        place: where it is, without links above it. above: device and inode of the folders on the way there.
        """
        self.check_name(path)
        target = self.follow(path, place) if place.is_symlink() else place
        if target is None:
            return
        try:
            status = target.stat()
        except OSError as error:
            raise ClusterError(f"{str(target)!r} cannot be read: {error.strerror}", hint=EXCLUDE_HINT) from error
        identity = (status.st_dev, status.st_ino)
        if stat.S_ISREG(status.st_mode):
            self.found.files[path] = (target, status)
        elif not stat.S_ISDIR(status.st_mode):
            self.found.left_out.append(f"{path!r} is neither a file nor a folder")
        elif identity in above:
            self.found.left_out.append(f"{path!r} is a link to a folder that it lies in")
        else:
            self.visit_folder(path, target, (*above, identity))

    def visit_folder(self, path: str, place: Path, above: tuple[tuple[int, int], ...]) -> None:
        """Take what is in a folder; one with nothing to be sent in it is kept empty: a program may write there."""
        try:
            with os.scandir(place) as entries:
                names = sorted((entry.name, Path(entry.path).is_dir()) for entry in entries)
        except OSError as error:
            raise ClusterError(f"{str(place)!r} cannot be read: {error.strerror}", hint=EXCLUDE_HINT) from error
        empty = True
        for name, is_folder in names:
            child = name if path == "." else f"{path}/{name}"
            if not self.patterns.leave_out(child, is_folder=is_folder):
                empty = False
                self.visit(child, place / name, above)
        if empty and path != ".":
            self.found.folders.add(path)

    def follow(self, path: str, link: Path) -> Path | None:
        """Where a link leads; None, with a word for the reader, where that is nothing to send. Raises ClusterError."""
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError):  # the latter for a circle, before Python 3.13
            self.found.left_out.append(f"{path!r} is a link that leads nowhere")
            return None
        if not target.is_relative_to(self.root):
            raise ClusterError(
                f"{str(link)!r} is a link that leads out of the folder of cluster.toml, to {str(target)!r}",
                hint=f"put a copy there instead, or {EXCLUDE_HINT}",
            )
        if self.find_left_out(target) is not None:
            self.found.left_out.append(f"{path!r} is a link to what is left out")
            return None
        return target

    def check_name(self, path: str) -> None:
        """Raises ClusterError for a name that a tree cannot have."""
        try:
            path.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(self.root / path)
            raise ClusterError(f"{shown!r}: this name is not UTF-8", hint=f"rename it, or {EXCLUDE_HINT}") from None
        if path == RESERVED:
            raise ClusterError(
                f"{self.root / path}: this name is taken on the nodes", hint=f"rename it, or {EXCLUDE_HINT}"
            )
