"""The packages of the nodes' environment, from [bootstrap] packages and requirements files.

For the format, see https://pip.pypa.io/en/stable/reference/requirements-file-format/. Files are read on the user's
machine, and their conditions (`; python_version < "3.10"`) are evaluated for the nodes. pip itself would evaluate them
for this machine, and would obey index options and other options in the file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foundation.errors import ConfigError
from foundation.files import read_bounded
from foundation.toml import parse_toml

if TYPE_CHECKING:
    from packaging.requirements import Requirement

FILE_OPTION = re.compile(r"(-r|--requirement|-c|--constraint)(?:\s*=\s*|\s+|(?<=-[rc]))(\S.*)")
HASH_OPTION = re.compile(r"\s--hash(?:=|\s+)(\S+)")
COMMENT = re.compile(r"(?:^|\s+)#.*$")
INDEX_ADVICE = "remove it from the file, and configure pip on this machine instead: pip config set global.{name} URL"
ADVICE = {
    "-e": "remove it: the folder of your script is sent to the nodes as it is; [bootstrap] sync names others",
    "--editable": "remove it: the folder of your script is sent to the nodes as it is; [bootstrap] sync names others",
    "-i": INDEX_ADVICE.format(name="index-url"),
    "--index-url": INDEX_ADVICE.format(name="index-url"),
    "--extra-index-url": INDEX_ADVICE.format(name="extra-index-url"),
    "-f": INDEX_ADVICE.format(name="find-links"),
    "--find-links": INDEX_ADVICE.format(name="find-links"),
    "--trusted-host": "remove it from the file, and run: pip config set global.trusted-host HOST",
    "--pre": "remove it, and name the version: NAME==VERSION",
    "--require-hashes": "remove it: hashes are checked wherever a line has them",
}
"""The advice for each pip option that is not supported here."""
URL_ADVICE = (
    "packages come from the package index, by name; to use another index, "
    "set up pip on this machine: pip config set global.extra-index-url URL"
)
MXNET = re.compile(r"mxnet(-cu[0-9]+)?")
NEEDS_BUILD = "has no wheel and needs a build: "
"""What pip_without_builds.py prints before the NAME==VERSION of a source that pip would build."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A package to install, or a limit on its version that applies if it is installed.

    requirement: in PEP 508's form. hashes: "sha256:..." each; the package's file must have one of them; (): any file.
    place: the source of the requirement, such as "requirements.txt, line 3".
    """

    requirement: str
    place: str
    hashes: tuple[str, ...] = ()
    only_limits: bool = False


def parse_requirement(text: str) -> "Requirement":
    """Parses a package with versions. Pure. Raises ValueError for anything else, such as a URL.

    https://packaging.python.org/en/latest/specifications/dependency-specifiers/
    """
    # Slow to import, and few configurations have packages.
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415

    try:
        found = Requirement(text)
    except InvalidRequirement as error:
        if "://" in text or text.startswith((".", "/", "~")) or text.endswith((".whl", ".tar.gz", ".zip")):
            raise ValueError(f"URLs and files are not supported: {URL_ADVICE}") from error
        raise ValueError('not a package with versions, such as "pandas>=2,<3"') from error
    if found.url is not None:
        raise ValueError(f"URLs and files are not supported: {URL_ADVICE}")
    return found


def check_entry(entry: str) -> str:
    """Returns an entry of [bootstrap] packages in its normal form. Pure. Raises ValueError."""
    option = FILE_OPTION.fullmatch(entry.strip())
    if option is not None:
        short = "-r" if "r" in option[1][:3] else "-c"
        return f"{short} {option[2]}"
    if entry.lstrip().startswith("-"):
        raise ValueError(explain_option(entry.strip()))
    return str(parse_requirement(entry))


def explain_option(line: str) -> str:
    """Explains that a pip option is not supported, and what to do. Omits its value, which can be secret. Pure."""
    name = re.split(r"[\s=]", line, maxsplit=1)[0]
    return f"the option {name} is not supported; {ADVICE.get(name, 'remove it')}"


def read_packages(entries: Sequence[str], *, folder: Path) -> tuple[Wanted, ...]:
    """Reads the requirements in the entries of [bootstrap] packages; `folder` is cluster.toml's.

    Raises ConfigError, which names each invalid file and line, with advice.
    """
    found: list[Wanted] = []
    mistakes: list[str] = []
    seen: set[tuple[Path, bool]] = set()
    for entry in entries:
        option = FILE_OPTION.fullmatch(entry)
        if option is None:
            found.append(Wanted(requirement=entry, place="[bootstrap] packages"))
            continue
        try:
            only_limits = option[1] == "-c"
            found += _read_file(option[2], folder=folder, only_limits=only_limits, seen=seen, mistakes=mistakes)
        except OSError as error:
            mistakes.append(f'[bootstrap] packages = ["{entry}"]: {folder / option[2]}: {_explain(error)}')
    if mistakes:
        raise ConfigError("\n".join(mistakes), hint="correct this, then run the command again")
    return tuple(found)


def _read_file(
    name: str, *, folder: Path, only_limits: bool, seen: set[tuple[Path, bool]], mistakes: list[str]
) -> Iterator[Wanted]:
    """Yields the requirements of a file. Adds to `seen`, the files that were read, and `mistakes`. Raises OSError."""
    path = (folder / name).resolve()
    if (path, only_limits) in seen:
        return
    seen.add((path, only_limits))
    text = read_bounded(path)
    try:
        lines = tuple(join_lines(text.decode("utf-8-sig")))
    except UnicodeDecodeError:
        mistakes.append(f"{name}: not text in UTF-8; save it as UTF-8")
        return
    if path.name == "pyproject.toml":
        yield from _read_project(text.decode("utf-8-sig"), name=name, only_limits=only_limits, mistakes=mistakes)
        return
    for number, line in lines:
        place = f"{name}, line {number}"
        option = FILE_OPTION.fullmatch(line)
        if option is None:
            try:
                yield parse_line(line, place=place, only_limits=only_limits)
            except ValueError as error:
                mistakes.append(f"{place}: {error}" if line.startswith("-") else f"{place}: {_show(line)}: {error}")
            continue
        below = str(Path(name).parent / option[2])
        limits = only_limits or option[1] in {"-c", "--constraint"}
        try:
            yield from _read_file(below, folder=folder, only_limits=limits, seen=seen, mistakes=mistakes)
        except OSError as error:
            mistakes.append(f"{place}: {line}: {_explain(error)}")


def _read_project(text: str, *, name: str, only_limits: bool, mistakes: list[str]) -> Iterator[Wanted]:
    """Yields a project's dependencies (https://packaging.python.org/en/latest/specifications/pyproject-toml/).

    Adds to `mistakes`.
    """
    place = f"{name}, [project] dependencies"
    try:
        found = parse_project(text).get("dependencies")
    except ValueError as error:
        mistakes.append(f"{name}: not valid TOML: {error}")
        return
    if not isinstance(found, list):
        mistakes.append(f"{place}: missing; list the nodes' packages there or in a requirements file")
        return
    for entry in found:
        try:
            yield parse_line(str(entry), place=place, only_limits=only_limits)
        except ValueError as error:
            mistakes.append(f"{place}: {_show(str(entry))}: {error}")


def parse_project(text: str) -> dict[str, Any]:
    """The table [project] of a pyproject.toml; empty without one. Pure. Raises ValueError."""
    found = parse_toml(text).get("project")
    return found if isinstance(found, dict) else {}


def _show(line: str) -> str:
    """A line as messages show it: without hashes and passwords, and shortened."""
    return re.sub(r"//[^/@\s]*@", "//***@", HASH_OPTION.sub("", line))[:80]


def _explain(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return f"cannot be read: {error.strerror}"


def join_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a requirements file, with their numbers. Pure.

    Joins each line that ends in a backslash with the next one. Removes comments and empty lines.
    """
    begun, pending = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        begun = begun or number
        is_comment = line.lstrip().startswith("#")
        if line.endswith("\\") and not is_comment:
            pending += line[:-1]
            continue
        whole = COMMENT.sub("", pending + ("" if is_comment else line)).strip()
        if whole:
            yield begun, whole
        begun, pending = 0, ""
    if pending.strip():
        yield begun, pending.strip()


def parse_line(line: str, *, place: str, only_limits: bool = False) -> Wanted:
    """Parses a line of `join_lines` that names a package. Pure. Raises ValueError."""
    if line.startswith("-"):
        raise ValueError(explain_option(line))
    hashes = tuple(HASH_OPTION.findall(line))
    rest = HASH_OPTION.sub("", line).strip()
    other = re.search(r"\s(--?[a-z][a-z-]*)", rest)
    if other is not None:
        raise ValueError(explain_option(other[1]))
    for one in hashes:
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", one):
            raise ValueError("a hash that is not sha256: followed by 64 hexadecimal digits; remove it")
    requirement = parse_requirement(rest)
    return Wanted(requirement=str(requirement), place=place, hashes=hashes, only_limits=only_limits)


def is_mxnet(requirement: str) -> bool:
    """Whether a requirement is for a distribution of MXNet, which [bootstrap] mxnet chooses. Pure."""
    return MXNET.fullmatch(canonical_name(requirement)) is not None


def canonical_name(requirement: str) -> str:
    """The normalized name of a requirement's package. Pure. Raises ValueError."""
    from packaging.utils import canonicalize_name  # noqa: PLC0415 - as in parse_requirement

    return canonicalize_name(parse_requirement(requirement).name)


def find_exact(requirement: str) -> str | None:
    """A requirement of one version, as [bootstrap] torch and mxnet take it: "torch==2.13.0"; None otherwise. Pure."""
    found = parse_requirement(requirement)
    versions = [one.version for one in found.specifier if one.operator == "=="]
    if found.marker is not None or len(found.specifier) != 1 or not versions or "*" in versions[0]:
        return None
    return f"{canonical_name(requirement)}=={versions[0]}"


def choose_requirement(requirement: str, *, python_version: tuple[int, int], machine: str) -> str | None:
    """A requirement without its condition; None if the condition does not hold on such a node. Pure."""
    found = parse_requirement(requirement)
    if found.marker is None:
        return requirement
    environment = node_environment(python_version, machine)
    if not found.marker.evaluate({**environment, "extra": ""}):
        return None
    found.marker = None
    return str(found)


def node_environment(python_version: tuple[int, int], machine: str) -> Mapping[str, str]:
    """The variables of conditions on such a node. Pure. The third number of its Python is unknown, and assumed to be 0.

    https://packaging.python.org/en/latest/specifications/dependency-specifiers/#environment-markers
    """
    short = ".".join(map(str, python_version))
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{short}.0",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{short}.0",
        "python_version": short,
        "sys_platform": "linux",
    }
