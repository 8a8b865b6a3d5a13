"""Locks the packages of an environment: uv chooses, on the user's machine, the wheels for a kind of node.

uv reads metadata and builds nothing, since a build would run a package's code here. Of a package's versions it takes
the newest, as pip does. If that has no wheel for the nodes, the head builds it (package_build.py).

The package indexes are those of uv's and pip's settings on this machine, with their passwords and certificates.
"""

import re
import tempfile
import tomllib
import urllib.parse
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bootstrap.environment.fetches import download, find_size
from bootstrap.environment.file_cache import BundleFile, cached_path, copy_here
from bootstrap.environment.git_source import fetch_git
from bootstrap.environment.requirements import GIT_URL, HASH, find_name, holds, is_git
from bootstrap.environment.target import WheelTarget, is_wheel_file
from bootstrap.environment.uv import UvError, run_for_nodes
from bootstrap.step import step
from foundation.errors import ClusterError
from foundation.progress import Report
from foundation.thread_pool import map_in_threads
from provision.oracle.tables import show

MINORS = (17, 28, *range(31, 41))
"""The minor versions of glibc that uv knows as platforms."""
NEEDS_WHEEL = re.compile(r"Wheels are required for `([^`]+)`")
HINT = (
    "check the versions in [bootstrap], and that this machine reaches the indexes in pip's or uv's settings (a "
    "project's do not count; behind a proxy: HTTPS_PROXY, SSL_CERT_FILE)"
)
AT_ONCE = 8


class NoWheelError(ClusterError):
    """The package index has no wheel of `requirement`, a package, that fits the nodes."""

    def __init__(self, message: str, *, requirement: str) -> None:
        super().__init__(message, hint=HINT)
        self.requirement = requirement


class NoSourceError(ClusterError):
    """The package index has neither a wheel nor a source distribution for a requirement."""


def lock_wheels(
    target: WheelTarget,
    requirements: Sequence[str],
    *,
    built: Sequence[BundleFile] = (),
    cache: Path,
    report: Report,
) -> tuple[BundleFile, ...]:
    """Finds the wheels for a target, sorted by name; `path` is their place in the cache once they are fetched.

    built: wheels that no index has. Wheels from folders of this machine are copied to the cache, and have no URLs.
    Raises NoWheelError, and ClusterError with the output of uv.
    """
    with step(report, f"finding wheels for the nodes: {(target.requirements or requirements)[0]} and its dependencies"):
        links, lines = [file.path.parent for file in built], _with_built(requirements, built)
        packages = _compile(target, lines, links=links)
        _refuse_old(packages, target, lines, links)
        found = map_in_threads(lambda one, _: _find_wheel(one, target, cache), packages, threads=AT_ONCE)
        files = tuple(sorted(found, key=lambda file: file.name))
        check_hashes(files, requirements, target, built={file.sha256 for file in built})
    return files


def _refuse_old(
    packages: Sequence[Mapping[str, Any]], target: WheelTarget, requirements: Sequence[str], links: Sequence[Path]
) -> None:
    """Raises NoWheelError if uv went back to an old version, of any age, for want of a wheel: of hydra-core to 0.11.

    Older versions stay if the newest have wheels for newer systems than the nodes', or if others need the old ones.
    """
    chosen = {one["name"]: one.get("version") for one in packages}
    open_lines = [line for line in requirements if not re.search("==|@|/", line)]
    sources = [find_name(one) for one in open_lines]
    newest = _compile(target, open_lines, links=links, sources=sources, alone=True) if open_lines else []
    for name, version in ((one["name"], one["version"]) for one in newest):
        if chosen.get(name, version) != version:
            try:
                latest = replace(target, glibc=(2, MINORS[-1]))
                _compile(latest, [*requirements, f"{name}=={version}"], links=links)
            except NoWheelError:
                raise
            except ClusterError:
                continue


def _with_built(requirements: Sequence[str], built: Sequence[BundleFile]) -> list[str]:
    """Returns the requirements with wheels in place of git repositories. Raises NoWheelError for one without."""
    wheels = {find_name(file.name.split("-")[0]): file.path for file in built}
    found = []
    for line in requirements:
        name = find_name(line)
        if is_git(line) and name not in wheels:
            raise NoWheelError(f"{name} has no wheel that was built from its git repository", requirement=name)
        found.append(GIT_URL.sub(lambda _, name=name: f"@ {wheels[name].as_uri()}", line))  # type: ignore[misc]
    return found


def lock_source(target: WheelTarget, requirement: str, *, cache: Path) -> BundleFile:
    """Finds the source of a package without a wheel. None of it runs. Raises NoSourceError, and ClusterError of git."""
    wanted = [one for one in target.requirements if not is_wheel_file(one)]
    names = [one for one in wanted if find_name(one) == requirement] or [requirement]
    if is_git(names[0]):
        return fetch_git(names[0], cache)
    wanted = [one for one in wanted if not is_git(one)]
    try:
        try:
            packages = _compile(
                target, [*wanted, requirement], sources=[requirement]
            )  # the version that the others need
        except ClusterError:  # another package has no wheel either
            packages = _compile(target, names, sources=[requirement])
        [file] = [package["sdist"] for package in packages if package["name"] == requirement and "sdist" in package]
    except (ClusterError, ValueError) as error:
        raise NoSourceError(f"{requirement} has neither a wheel for the nodes nor a source: {error}") from error
    source = _describe(file, cache)
    check_hashes([source], names, target, built=())
    return source


def check_hashes(
    files: Iterable[BundleFile], requirements: Iterable[str], target: WheelTarget, *, built: Collection[str]
) -> None:
    """Compares files with the hashes of requirements files. Pure. Raises ClusterError.

    Lines whose condition is false on the target do not count: a lock may have another version for other systems.
    built: the SHA-256s of the wheels that this project built, whose sources were compared.
    """
    allowed: dict[str, set[str]] = {}
    for line in requirements:
        hashes = HASH.findall(line)
        if hashes and holds(line, python_version=target.python_version, machine=target.machine):
            allowed.setdefault(find_name(line), set()).update(hashes)
    for file in files:
        known = allowed.get(find_name(file.name.split("-")[0]))
        if known is not None and file.sha256 not in known and file.sha256 not in built:
            raise ClusterError(
                f"{file.name}: its SHA-256 is {file.sha256}, which the requirements file does not list for it",
                hint="compare it with the package index; if they match, add it to the requirements file",
            )


def _compile(
    target: WheelTarget,
    requirements: Sequence[str],
    *,
    links: Sequence[Path] = (),
    sources: Collection[str] = (),
    alone: bool = False,
) -> list[dict[str, Any]]:
    """The packages of the lock that uv makes (https://packaging.python.org/en/latest/specifications/pylock-toml/).

    links: folders with more wheels. sources: packages whose sources are found instead of wheels, without their
    dependencies. alone: finds no dependencies, and wheels of the sources, too. uv runs in a folder of its own, and so
    finds the user's settings but not those of a project.
    """
    with tempfile.TemporaryDirectory(prefix="cluster-lock-") as temporary:
        folder = Path(temporary)
        (folder / "packages.txt").write_text("".join(f"{line}\n" for line in requirements))
        (folder / "limits.txt").write_text("".join(f"{line}\n" for line in target.limits))
        words = ["pip", "compile", "packages.txt", "--constraints", "limits.txt"]
        words += ["--format", "pylock.toml", "--no-header", "--quiet"]
        words += ["--no-deps"] if alone else ["--only-binary", ":all:"]
        words += ["--python-platform", _platform(target), "--python-version", show(target.python_version)]
        settings = ""
        if sources:  # with this metadata, uv builds nothing to learn it
            words += [word for name in sources if not alone for word in ("--no-binary", name)]
            metadata = ", ".join(f'{{ name = "{name}", requires-dist = [] }}' for name in sources)
            settings = f"dependency-metadata = [{metadata}]\n"
        # Without a file here, uv looks above: other users can write to /tmp.
        (folder / "uv.toml").write_text(settings)
        try:
            return list(tomllib.loads(run_for_nodes(words, folder=folder, links=links)).get("packages", ()))
        except UvError as error:
            text = str(error)
    message = f"uv finds no packages that fit the nodes (Python {show(target.python_version)}, {target.machine}){text}"
    missing = NEEDS_WHEEL.search(text)
    if missing is not None:
        raise NoWheelError(message, requirement=missing[1])
    raise ClusterError(message, hint=HINT)


def _platform(target: WheelTarget) -> str:
    minor = max((one for one in MINORS if one <= target.glibc[1]), default=MINORS[0])
    return f"{target.machine}-manylinux_2_{minor}"


def _find_wheel(package: Mapping[str, Any], target: WheelTarget, cache: Path) -> BundleFile:
    """The best wheel of a locked package. Raises ClusterError."""
    wheels = package.get("wheels") or [package["archive"]]
    return _describe(wheels[0] if len(wheels) == 1 else _choose(wheels, target), cache)


def _choose(wheels: Sequence[Mapping[str, Any]], target: WheelTarget) -> Mapping[str, Any]:
    """The best of several wheels, which all run on the target: one for its Python, and for a new system. Pure."""
    from packaging.tags import compatible_tags, cpython_tags  # noqa: PLC0415 - slow to import
    from packaging.utils import parse_wheel_filename  # noqa: PLC0415 - the same

    tags_of = [parse_wheel_filename(_name(one))[3] for one in wheels]
    platforms = sorted({tag.platform for tags in tags_of for tag in tags}, reverse=True)
    version, short = target.python_version, "".join(map(str, target.python_version))
    tags = [*cpython_tags(version, [f"cp{short}"], platforms), *compatible_tags(version, f"cp{short}", platforms)]
    ranks = {tag: rank for rank, tag in enumerate(tags)}
    return wheels[min(range(len(wheels)), key=lambda at: min(ranks.get(tag, len(tags)) for tag in tags_of[at]))]


def _name(file: Mapping[str, Any]) -> str:
    return str(file.get("name") or urllib.parse.unquote(_address(file).path).rpartition("/")[2])


def _address(file: Mapping[str, Any]) -> urllib.parse.SplitResult:
    return urllib.parse.urlsplit(str(file.get("url") or file["path"]))


def _describe(file: Mapping[str, Any], cache: Path) -> BundleFile:
    """A file of a lock. Nodes fetch it themselves if they can, so its URL has no password. Raises ClusterError."""
    name, address = _name(file), _address(file)
    if address.scheme in ("file", ""):
        return copy_here(Path(urllib.parse.unquote(address.path)), cache)
    url = address._replace(netloc=address.netloc.rpartition("@")[2], fragment="").geturl()
    sha256, size_bytes = file["hashes"].get("sha256"), file.get("size") or find_size(url)
    if sha256 is None or not size_bytes:  # an index that tells another digest, or none, or a server that tells no size
        with tempfile.TemporaryDirectory(prefix="cluster-fetch-") as temporary:
            download(url, Path(temporary, name))
            here = copy_here(Path(temporary, name), cache)
        if sha256 not in (None, here.sha256):
            raise ClusterError(f"{url} has the SHA-256 {here.sha256}, not {sha256}", hint="run the command again")
        return replace(here, urls=(url,))
    return BundleFile(path=cached_path(cache, sha256, name), sha256=sha256, size_bytes=size_bytes, urls=(url,))
