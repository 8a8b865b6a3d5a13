"""What [bootstrap] asks for in the nodes' environment: lines of a requirements file, which uv understands.

https://pip.pypa.io/en/stable/reference/requirements-file-format/. Files and locks are read on the user's machine, so
that the head needs only their lines. uv evaluates conditions (`; python_version < "3.10"`) for the nodes.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from foundation.errors import ConfigError
from foundation.files import read_bounded
from foundation.toml import parse_toml
from provision.oracle.tables import Version, show

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PYPROJECT = "pyproject.toml"
FILE_OPTION = re.compile(r"(-r|--requirement|-c|--constraint)(?:\s*=\s*|\s+|(?<=-[rc]))(\S.*)")
HASH = re.compile(r"--hash(?:=|\s+)sha256:([0-9a-f]{64})")
NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?=$|[\[<>=!~;@,(\s])")
WHEEL_URL = re.compile(r"@\s*https://\S+\.whl(#\S*)?(\s|$)")
GIT_URL = re.compile(
    r"@\s*git\+(?P<url>(?:https|ssh)://(?:git@)?[^\s@#/]*/[^\s@#]+)(?:@(?P<ref>\w[\w./-]*))?"
    r"(?:#subdirectory=(?P<folder>\w[\w./-]*))?(?=\s|$)"
)
LOCAL = re.compile(r"[./~]|[^\s:]+\.(?:txt|toml|whl)$")
COMMENT = re.compile(r"(?:^|\s+)#.*$", re.MULTILINE)
MXNET = re.compile(r"mxnet(-cu[0-9]+)?")


class Requirements(Struct, frozen=True, kw_only=True):
    """Lines that name packages. limits: those that only limit versions, from constraints files.

    left: those that nodes cannot use. locked: those of the project's lock, with their hashes. python: the project's
    requires-python; "" without one.
    """

    lines: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()
    python: str = ""

    def allows(self, version: Version) -> bool:
        """Whether the project's lock covers a version of Python. Pure."""
        return allows(self.python, version)


def check_entry(entry: str) -> str:
    """Returns an entry of [bootstrap] packages without spaces around it. Pure. Raises ValueError."""
    entry = entry.strip()
    if not FILE_OPTION.fullmatch(entry):
        check_line(entry)
    return entry


def check_line(line: str) -> None:
    """Refuses what is not a package. Pure. Raises ValueError without the line, which may have a password in it."""
    option = re.match(r"--?[A-Za-z][A-Za-z-]*", line)
    if option is not None and option[0] not in ("-e", "--editable"):
        raise ValueError(f"the option {option[0]} is not supported: set up pip or uv on this machine instead")
    if option is not None or LOCAL.match(line):
        raise ValueError(
            "files are not packages: -r FILE names a requirements file; [bootstrap] sync sends your own code; the "
            "wheels of a folder are found by name if UV_FIND_LINKS is that folder on this machine"
        )
    is_wheel = WHEEL_URL.search(line) and not re.search(r"//[^/\s]*@", line)
    if "://" in line and not is_wheel and not is_git(line):
        raise ValueError(
            "not a URL without a password, of a wheel, such as NAME @ https://HOST/NAME-1-py3-none-any.whl, or of a "
            "git repository: NAME @ git+https://HOST/REPOSITORY@TAG"
        )
    if not find_name(line):
        raise ValueError('not a package of a package index, such as "pandas>=2,<3"')


def read_packages(entries: Sequence[str], *, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines of [bootstrap] packages that name packages, and those that only limit versions. Raises ConfigError."""
    found: dict[tuple[str, bool], None] = {}
    for entry in entries:
        option = FILE_OPTION.fullmatch(entry)
        if option is None:
            found[entry, False] = None
        else:
            found |= dict.fromkeys(_read_file(folder / option[2], is_limit="c" in option[1][:3], above=()))
    lines = tuple(line for line, is_limit in found if not is_limit)
    return lines, tuple(line for line, is_limit in found if is_limit)


def _read_file(path: Path, *, is_limit: bool, above: tuple[Path, ...]) -> Iterator[tuple[str, bool]]:
    """Yields the lines of a file and of those that it includes, and whether they are limits. Raises ConfigError."""
    if path in above:
        return
    try:
        text = read_bounded(path).decode("utf-8-sig")
        lines = parse_project(text).get("dependencies", ()) if path.name == PYPROJECT else join_lines(text)
        for line in map(str, lines):
            option = FILE_OPTION.fullmatch(line)
            if option is None:
                check_line(line)
                yield line, is_limit
            else:
                is_below_limit = is_limit or "c" in option[1][:3]
                yield from _read_file(path.parent / option[2], is_limit=is_below_limit, above=(*above, path))
    except (OSError, ValueError) as error:
        message = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"[bootstrap] packages: {path}: {message}", hint="correct this, then run it again") from None


def join_lines(text: str) -> list[str]:
    """The lines of a requirements file, without comments and empty lines. Pure."""
    whole = re.sub(r"[ \t]*\\\r?\n[ \t]*", " ", COMMENT.sub("", text))
    return [line.strip() for line in whole.splitlines() if line.strip()]


def parse_project(text: str) -> dict[str, Any]:
    """The table [project] of a pyproject.toml; empty without one. Pure. Raises ValueError."""
    found = parse_toml(text).get("project")
    return found if isinstance(found, dict) else {}


def allows(python: str, version: Version) -> bool:
    """Whether requires-python allows a version of Python; "" allows all. Raises ValueError."""
    if not python:
        return True
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - slow to import, and few use a project

    return any(SpecifierSet(python).contains(f"{show(version)}.{patch}") for patch in (0, 99))


def find_name(line: str) -> str:
    """The normalized name of a line's package; "" for a URL, a path or an option. Pure."""
    found = NAME.match(line)
    return re.sub(r"[-_.]+", "-", found[1]).lower() if found is not None else ""


def is_git(line: str) -> bool:
    """Whether a line has the URL of a git repository. Pure."""
    return GIT_URL.search(line) is not None


def is_mxnet(line: str) -> bool:
    """Whether a line is for a distribution of MXNet, which [bootstrap] mxnet chooses. Pure."""
    return MXNET.fullmatch(find_name(line)) is not None


def find_exact(line: str) -> str | None:
    """A line of one version, as [bootstrap] torch and mxnet take it: "torch==2.13.0"; None otherwise. Pure."""
    version = re.fullmatch(r"[A-Za-z0-9._-]+\s*==\s*([^\s*;,]+)", HASH.sub("", line).strip())
    return f"{find_name(line)}=={version[1]}" if version is not None else None


def find_locked(locked: Iterable[str], names: re.Pattern[str], *, python_version: Version, machine: str) -> str | None:
    """The requirement of a lock for one of these packages that holds on such a node; None without one. Pure."""
    for line in locked:
        if names.fullmatch(find_name(line)) and holds(line, python_version=python_version, machine=machine):
            found = _parse(line)
            return f"{found.name}{found.specifier}"
    return None


def holds(line: str, *, python_version: Version, machine: str) -> bool:
    """Whether the condition of a line is true on such a node. Pure."""
    short, marker = show(python_version), _parse(line).marker
    node = {
        "python_version": short,
        "python_full_version": f"{short}.0",
        "platform_machine": machine,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
    }
    return marker is None or marker.evaluate(node)


def _parse(line: str) -> "Requirement":
    from packaging.requirements import Requirement  # noqa: PLC0415 - slow to import, and few use a lock

    return Requirement(HASH.sub("", line).strip())
