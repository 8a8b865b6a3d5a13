"""[bootstrap] sync: reads the user's files and folders into a tree, except those that [bootstrap] exclude matches."""

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from bootstrap.transfer.tree import EXECUTABLE, PLAIN, Tree, TreeFile, make_tree
from foundation.errors import ClusterError, ConfigError
from foundation.files import read_bounded
from foundation.progress import Event, Report
from foundation.user_folders import cache_folder, home_folder, state_folder

if TYPE_CHECKING:
    from pathspec.pattern import RegexPattern

# The first three are useless on a node; the others contain private keys and passwords, or what a command is writing.
REPORTS = ("report-20[0-9][0-9][0-9][0-9][0-9][0-9]-*.html", "*.capsule", "cluster-debug.tar.gz")  # of our commands
ALWAYS_LEFT_OUT = (".git", "__pycache__", "*.pyc", ".ssh", ".aws", ".cluster", ".cluster-*", *REPORTS)
# Private keys and passwords, unless they are named: an entry of `sync`, or a pattern of `exclude` such as "!.env".
SECRETS = (".env", ".env.*", "*.pem", "id_*")
NOT_SECRETS = ("*.pub", ".env.example", ".env.sample", ".env.template", "id_*.*")
# The group in pathspec's regular expressions for the slash after a matched folder; the path below the folder follows.
BELOW = "ps_d"
SHOWN = 5
WORTH_TELLING_BYTES = 200_000_000
SMALL_BYTES = 1 << 20
MOST_KEPT_BYTES = 32 << 20
GIT_IGNORE = ".gitignore"
Reason = Literal["never", "exclude", "gitignore", "secret"]
"""Why a file is left out: always, by [bootstrap] exclude, by a .gitignore file, or because it may have a secret."""
EXCLUDE_HINT = "leave it out with [bootstrap] exclude"


@dataclass(kw_only=True, slots=True)
class SyncFiles:
    """The files to send, by their path below the project's folder.

    files: the path on this machine (for a link, its target) and the status of each. folders: the empty folders.
    left_out: a line for each optional file that cannot be sent, with the reason. ignored: the paths that .gitignore
    files leave out; those of folders end with a slash. secrets: the files that may have a secret.
    """

    files: dict[str, tuple[Path, os.stat_result]] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)


def find_files(project_dir: Path, *, sync: Sequence[str], exclude: Sequence[str]) -> SyncFiles:
    """Finds the files that `sync` names and `exclude` does not match. Follows links within the project's folder.

    project_dir: the folder of cluster.toml, which both are relative to. Raises ConfigError for an entry that is missing
    or excluded, or that contains the home folder; ClusterError for links to the outside, names that are not UTF-8,
    and unreadable folders.
    """
    walk = _Walk(root=project_dir.resolve(), patterns=Patterns(exclude))
    for entry in sorted({os.path.normpath(entry) for entry in sync}):
        walk.check_entry(entry)
        above, _, name = entry.rpartition("/")
        folder = walk.follow(entry, walk.root / above)
        if folder is not None:
            walk.visit(entry, folder / name, ())
    return walk.found


def find_below(folders: Sequence[str], *, named: Sequence[str], project_dir: Path, exclude: Sequence[str]) -> SyncFiles:
    """Finds the files in folders that can be sent, except those that .gitignore files and `exclude` match.

    folders: paths below project_dir, or ".". Also leaves out cluster.toml and virtual environments, and everything but
    the `named` files if a folder is or contains the user's home folder.
    """
    root = project_dir.resolve()
    walk = _Walk(root=root, patterns=Patterns(exclude), ignores=GitIgnores(root), is_lenient=True)
    for folder in folders:
        if home_folder().resolve().is_relative_to((root / folder).resolve()):
            walk.found.left_out.append("the other files of your home folder: put the program into a folder of its own")
            for path in named:
                walk.visit_child(path, root / path, ())
        else:
            walk.visit(folder, root / folder, ())
    return walk.found


def read_sync_files(found: SyncFiles, *, project_dir: Path, report: Report) -> Tree:
    """Hashes the files, and makes the tree. Reports the files that are left out. Raises ClusterError."""
    _report_left_out(sorted(set(found.left_out)), report)
    secrets = sorted(set(found.secrets) - found.files.keys())
    if secrets:
        what = f"not sent, since they may have secrets: {render_some(secrets)}"
        report(Event(kind="warn", what=f'{what} (to send one: [bootstrap] exclude = ["!{secrets[0]}"])'))
    size_bytes = sum(status.st_size for _, status in found.files.values())
    if size_bytes > WORTH_TELLING_BYTES:
        report(Event(kind="info", what=f"reading {size_bytes / 1e6:.0f} MB of files in {project_dir}"))
    files, kept_bytes = [], 0
    for path, (file, status) in found.files.items():
        keeps = status.st_size <= SMALL_BYTES and kept_bytes + status.st_size <= MOST_KEPT_BYTES
        kept_bytes += status.st_size if keeps else 0
        files.append(_read_file(path, file, keeps=keeps))
    return make_tree(files, found.folders)


def _read_file(path: str, file: Path, *, keeps: bool) -> TreeFile:
    """Hashes one file. Raises ClusterError if the file cannot be read.

    keeps: keep its content, since `up` may send it minutes later, when a script has been edited.
    """
    try:
        with file.open("rb") as stream:
            status = os.fstat(stream.fileno())
            content = stream.read(2 * SMALL_BYTES) if keeps else None
            digest = hashlib.file_digest(stream, "sha256") if content is None else hashlib.sha256(content)
            size_bytes = stream.tell()  # it may have grown since
    except OSError as error:
        raise ClusterError(
            f"{str(file)!r} cannot be read: {error.strerror}", hint=f"fix that, or {EXCLUDE_HINT}"
        ) from error
    mode = EXECUTABLE if status.st_mode & 0o111 else PLAIN
    source = file if content is None else content
    return TreeFile(path=path, sha256=digest.hexdigest(), size_bytes=size_bytes, mode=mode, source=source)


def _report_left_out(left_out: Sequence[str], report: Report) -> None:
    for line in left_out[:SHOWN]:
        report(Event(kind="warn", what=f"not sent: {line}"))
    if len(left_out) > SHOWN:
        report(Event(kind="warn", what=f"not sent: {len(left_out) - SHOWN} more like these"))


def render_some(names: Sequence[str]) -> str:
    """The first names, and the number of others. Pure."""
    more = len(names) - SHOWN
    return f"{', '.join(names[:SHOWN])}{f' and {more} more' if more > 0 else ''}"


class Patterns:
    """Decides which paths are left out. Ask about a folder before its content, as git does.

    No pattern can include the content of a folder that is left out. pathspec's own match_file matches a whole path:
    with it, "!my/" would include everything below my/, despite earlier patterns.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._patterns = _read(lines) if lines else ()

    def decide(self, path: str, *, is_folder: bool) -> bool | None:
        """Whether the last pattern that matches this path itself, not a parent, leaves it out; None if none matches."""
        last = next((p for p in reversed(self._patterns) if _matches(p, path, is_folder=is_folder)), None)
        return None if last is None else bool(last.include)


class GitIgnores:
    """The .gitignore files in and below a folder, and above it in the same repository."""

    def __init__(self, root: Path) -> None:
        """root: absolute, without links."""
        self._top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
        self._found: dict[Path, Patterns] = {}

    def decide(self, path: Path, *, is_folder: bool) -> bool | None:
        """Like Patterns.decide, by the nearest .gitignore that decides. Unreadable and invalid files do not count."""
        for folder in path.parents:
            decision = self._patterns_of(folder).decide(path.relative_to(folder).as_posix(), is_folder=is_folder)
            if decision is not None or folder == self._top:
                return decision
        return None

    def _patterns_of(self, folder: Path) -> Patterns:
        if folder not in self._found:
            try:
                lines = read_bounded(folder / GIT_IGNORE).decode(errors="replace").splitlines()
                self._found[folder] = Patterns(lines)
            except (OSError, ValueError):
                self._found[folder] = Patterns(())
        return self._found[folder]


def _own_folders() -> frozenset[Path]:
    return frozenset(folder().resolve() for folder in (state_folder, cache_folder))


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_folder(path: Path | str) -> bool:
    """Whether a path is a folder that this user may ask about."""
    return os.path.isdir(path)  # noqa: PTH112 - Path's raises PermissionError


def _read(lines: Sequence[str]) -> "tuple[RegexPattern, ...]":
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - slow to import, and few configurations have a pattern
    from pathspec.pattern import RegexPattern  # noqa: PLC0415 - as above

    return tuple(
        pattern
        for pattern in GitIgnoreSpec.from_lines(lines).patterns
        if isinstance(pattern, RegexPattern) and pattern.include is not None
    )


def _matches(pattern: "RegexPattern", path: str, *, is_folder: bool) -> bool:
    regex = pattern.regex
    if regex is None:
        return False
    if BELOW not in regex.groupindex:  # "**" and "my/**" match each path below a folder directly
        return regex.match(path) is not None
    if regex.pattern == f"(?P<{BELOW}>/)":  # "*/"
        return is_folder
    return regex.fullmatch(path) is not None or (is_folder and regex.fullmatch(f"{path}/") is not None)


class _Walk(Struct, frozen=True, kw_only=True):
    """One walk over the files to send. root: absolute, without links.

    is_lenient: the user has not named the files, so those that cannot be sent are left out and are not an error.
    own: the folders that our commands write to, which CI jobs have below the project.
    """

    root: Path
    patterns: Patterns
    own: frozenset[Path] = msgspec.field(default_factory=_own_folders)
    ignores: GitIgnores | None = None
    is_lenient: bool = False
    found: SyncFiles = msgspec.field(default_factory=SyncFiles)

    def check_entry(self, entry: str) -> None:
        """Raises ConfigError for an entry of `sync` that would send nothing, or the whole home folder."""
        path = self.root / entry
        if not os.path.lexists(path):
            raise ConfigError(
                f'bootstrap.sync = "{entry}": there is no such file or folder in {self.root}',
                hint="correct [bootstrap] sync in cluster.toml, then run the command again",
            )
        left_out = self.find_left_out(path)
        if left_out is not None and left_out != (entry, "secret"):
            raise ConfigError(
                f'bootstrap.sync = "{entry}": nothing would be sent, since {left_out[0]} is excluded',
                hint=f"change [bootstrap] exclude; always excluded are {', '.join(ALWAYS_LEFT_OUT)}",
            )
        if home_folder().resolve().is_relative_to(path.resolve()):
            raise ConfigError(
                f'bootstrap.sync = "{entry}": your whole home folder, keys and passwords too, is in {path.resolve()}',
                hint="put cluster.toml and the files to send into a folder of their own",
            )

    def find_left_out(self, path: Path) -> tuple[str, Reason] | None:
        """This path, or the folder above it, that is left out, and why; None if neither is."""
        parts = path.relative_to(self.root).parts
        for count in range(1, len(parts) + 1):
            above = "/".join(parts[:count])
            reason = self.find_reason(above, is_folder=_is_folder(self.root / above))
            if reason is not None:
                return above, reason
        return None

    def find_reason(self, path: str, *, is_folder: bool) -> Reason | None:
        """Why this path itself, not a parent, is left out; None if it is not."""
        name = path.rpartition("/")[2]
        if _matches_any(name, ALWAYS_LEFT_OUT) or (is_folder and self.root / path in self.own):
            return "never"
        decision = self.patterns.decide(path, is_folder=is_folder)
        if decision is not None:
            return "exclude" if decision else None
        if self.ignores is not None:
            real_path = self.root / path
            if name == "cluster.toml" or (is_folder and os.access(real_path / "pyvenv.cfg", os.F_OK)):
                return "never"
            if self.ignores.decide(real_path, is_folder=is_folder):
                return "gitignore"
        is_secret = not is_folder and _matches_any(name, SECRETS) and not _matches_any(name, NOT_SECRETS)
        return "secret" if is_secret else None

    def visit(self, path: str, real_path: Path, above: tuple[tuple[int, int], ...]) -> None:
        """Adds a path and everything below it. Raises ClusterError.

        real_path: its real path, except that it may be a link itself. above: device and inode of each folder above it.
        """
        self.check_name(path)
        target = self.follow(path, real_path) if real_path.is_symlink() else real_path
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
            self.found.left_out.append(f"{path!r} is a link to a folder that contains it")
        else:
            self.visit_folder(path, target, (*above, identity))

    def visit_folder(self, path: str, real_path: Path, above: tuple[tuple[int, int], ...]) -> None:
        """Adds a folder's content. Adds an empty folder, too: a program may write to it. Raises ClusterError."""
        try:
            with os.scandir(real_path) as entries:
                names = sorted((entry.name, _is_folder(entry.path)) for entry in entries)
        except OSError as error:
            raise ClusterError(f"{str(real_path)!r} cannot be read: {error.strerror}", hint=EXCLUDE_HINT) from error
        empty = True
        for name, is_folder in names:
            child = name if path == "." else f"{path}/{name}"
            reason = self.find_reason(child, is_folder=is_folder)
            if reason is None:
                empty = False
                self.visit_child(child, real_path / name, above)
            elif reason == "gitignore":
                self.found.ignored.append(f"{child}/" if is_folder else child)
            elif reason == "secret":
                self.found.secrets.append(child)
        if empty and path != ".":
            self.found.folders.add(path)

    def visit_child(self, path: str, real_path: Path, above: tuple[tuple[int, int], ...]) -> None:
        """Like visit, but a lenient walk leaves out the path instead of raising ClusterError."""
        try:
            self.visit(path, real_path, above)
        except ClusterError as error:
            if not self.is_lenient:
                raise
            self.found.left_out.append(error.message)

    def follow(self, path: str, link: Path) -> Path | None:
        """The target of a link; None, with a note in left_out, if it is broken or excluded.

        Raises ClusterError for a target outside the project's folder.
        """
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError):  # RuntimeError for a circle of links, before Python 3.13
            self.found.left_out.append(f"{path!r} is a broken link")
            return None
        if not target.is_relative_to(self.root):
            raise ClusterError(
                f"{str(link)!r} is a link to {str(target)!r}, outside the folder of cluster.toml",
                hint=f"put a copy there instead, or {EXCLUDE_HINT}",
            )
        if self.find_left_out(target) is not None:
            self.found.left_out.append(f"{path!r} is a link to an excluded path")
            return None
        return target

    def check_name(self, path: str) -> None:
        """Raises ClusterError for a name that a tree cannot have."""
        try:
            path.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(self.root / path).decode(errors="backslashreplace")
            raise ClusterError(f"{shown}: this name is not UTF-8", hint=f"rename it, or {EXCLUDE_HINT}") from None
