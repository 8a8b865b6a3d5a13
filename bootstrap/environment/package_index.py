"""Finds the wheels that the nodes need, and their URLs, with pip on the user's machine."""

import hashlib
import http.client
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from bootstrap.environment.file_cache import BundleFile, describe_file, discard_folder, find_place
from bootstrap.environment.requirements import NEEDS_BUILD, canonical_name
from bootstrap.environment.target import WheelTarget, platform_tags
from bootstrap.ssh.explain import render_last_lines
from foundation.errors import ClusterError
from foundation.files import written_whole
from foundation.progress import Event, Report
from foundation.thread_pool import map_in_threads

RETRIES = 7
"""With pip's doubling pauses, an unreachable index takes about half a minute; pip's default of five takes 8 s."""
PIP = "bootstrap.environment.pip_without_builds"
ALWAYS_WHEELS = ("msgspec", "numpy", "obstore", "uv")
"""Packages that every environment has. Where the newest has no wheel for a node's old glibc, an older one serves."""
TAIL_BYTES = 512 << 10
"""How much of a wheel's end is read to find its unpacked size, since the end has the zip directory."""
UNPACKED_TIMES = 4
"""The assumed growth of a wheel whose unpacked size is unknown: MXNet's wheels grow to 2.5 to 3.5 times their size."""
TIMEOUT_S = 30
TRIES = 4
FIRST_PAUSE_S = 0.5
AT_ONCE = 8
READ_BYTES = 1 << 20
HINT = "check the versions in [bootstrap], and that this machine reaches a package index"
_BROKEN = (OSError, http.client.HTTPException)


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundWheel:
    """A wheel that pip has chosen. `sha256` is empty if the index does not publish it."""

    url: str
    sha256: str


def download_wheels(
    target: WheelTarget, requirements: Sequence[str], directory: Path, *, built: Sequence[BundleFile] = ()
) -> None:
    """Fetches the wheels that pip would choose by hand for some requirements, with their dependencies.

    built: wheels on this machine that no index has. Raises NoWheelError, and ClusterError with the output of pip.
    """
    words = ["download", "--dest", str(directory), *_platform(target), *_links(built)]
    _run_pip(words, target, requirements)
    found = [describe_file(path) for path in directory.iterdir()] if target.hashes else []
    check_hashes([(file.name, file.sha256) for file in found], target, built=built)


def download_source(target: WheelTarget, requirement: str, directory: Path) -> None:
    """Fetches a package's source distribution, and runs none of it.

    Raises NoSourceError, and ClusterError with the output of pip.
    """
    name = canonical_name(requirement)
    words = ["source", "--dest", str(directory), "--no-deps", "--no-binary", name]
    what = f"the source of {name}, which has no wheel"
    try:
        _run_pip(words, target, [requirement], what=what)
    except NoWheelError as error:
        raise NoSourceError(error.message, hint=error.hint) from error
    (file,) = (describe_file(path) for path in directory.iterdir())
    hashes = dict(target.hashes).get(name, ())
    if hashes and file.sha256 not in hashes:
        raise _wrong_hash(file.name, file.sha256)


def find_wheels(
    target: WheelTarget, requirements: Sequence[str], *, built: Sequence[BundleFile] = ()
) -> tuple[FoundWheel, ...]:
    """Finds the wheels that `download_wheels` would fetch. From an index with PEP 658, pip reads only metadata.

    Raises NoWheelError, and ClusterError with the output of pip.
    """
    words = ["install", "--dry-run", "--ignore-installed", "--report", "-", "--target", "unused"]
    words += [*_platform(target), *_links(built)]
    return parse_report(json.loads(_run_pip(words, target, requirements)))


def check_hashes(found: Sequence[tuple[str, str]], target: WheelTarget, *, built: Sequence[BundleFile]) -> None:
    """Compares wheels, by name and SHA-256, with the hashes of requirements files. Pure. Raises ClusterError.

    Skips the wheels that this project built, because their sources were compared.
    """
    hashes = dict(target.hashes)
    ours = {file.name for file in built}
    for name, sha256 in found:
        allowed = hashes.get(canonical_name(name.split("-")[0]))
        if allowed is not None and name not in ours and sha256 not in allowed:
            raise _wrong_hash(name, sha256)


def _wrong_hash(name: str, sha256: str) -> ClusterError:
    return ClusterError(
        f"{name}: its SHA-256 is {sha256}, which the requirements file does not list for this package",
        hint="compare it with the package index; if they match, add it to the requirements file",
    )


def _links(built: Sequence[BundleFile]) -> list[str]:
    return [word for file in built for word in ("--find-links", str(file.path.parent))]


def _platform(target: WheelTarget) -> list[str]:
    tags = [word for tag in platform_tags(target) for word in ("--platform", tag)]
    return ["--only-binary", ",".join(ALWAYS_WHEELS), *tags]


def parse_report(report: dict[str, Any]) -> tuple[FoundWheel, ...]:
    """The wheels of pip's installation report (https://pip.pypa.io/en/stable/reference/installation-report/). Pure."""
    infos = [item["download_info"] for item in report["install"]]
    return tuple(
        FoundWheel(url=info["url"], sha256=info.get("archive_info", {}).get("hashes", {}).get("sha256", ""))
        for info in infos
    )


def _run_pip(
    words: Sequence[str],
    target: WheelTarget,
    requirements: Sequence[str],
    *,
    what: str = "the nodes' wheels",
) -> str:
    python = ".".join(map(str, target.python_version))
    command = [sys.executable, "-P", "-m", PIP, *words, "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", str(RETRIES), "--implementation", "cp", "--python-version", python]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as limits:
        if target.limits:
            limits.write("".join(f"{limit}\n" for limit in target.limits))
            limits.flush()
            command += ["--constraint", limits.name]
        result = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        said = render_last_lines([line for line in result.stderr.splitlines() if line.strip()])
        message = f"pip could not fetch {what} (Python {python}, {target.machine}): {' '.join(requirements)}{said}"
        missing = find_missing(result.stderr)
        if missing is not None:
            raise NoWheelError(message, requirement=missing, hint=HINT)
        raise ClusterError(message, hint=HINT)
    return result.stdout


class NoWheelError(ClusterError):
    """The package index has no wheel for `requirement` that fits the nodes."""

    def __init__(self, message: str, *, requirement: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.requirement = requirement


def find_missing(said: str) -> str | None:
    """The requirement for which pip found no wheel, from its output; None for other errors. Pure."""
    needed = re.search(f"{NEEDS_BUILD}(\\S+)", said)
    if needed is not None:
        return needed[1]
    found = re.search(r"No matching distribution found for ([^\n]+?)(?: \(from [^\n]*)?$", said, re.MULTILINE)
    if found is None:  # pip 25 and later, if no older version of the dependent package helps
        found = re.search(r"have no matching distributions available for your environment:\n\s+(\S+)", said)
    return found[1] if found is not None else None


class NoSourceError(ClusterError):
    """The package index has neither a wheel nor a source distribution for a requirement."""


class NoUrlError(ClusterError):
    """A wheel cannot be fetched by its URL, for instance because the index requires a password."""


def resolve_wheels(
    target: WheelTarget,
    requirements: Sequence[str],
    *,
    built: Sequence[BundleFile] = (),
    cache: Path,
    report: Report,
) -> tuple[BundleFile, ...]:
    """Finds the wheels for a target, sorted by name; `path` is their place in the cache once they are fetched.

    built: wheels that no index has. Wheels from folders
    of this machine are copied to the cache, and have no URLs. Raises NoUrlError, NoWheelError, and ClusterError with
    the output of pip.
    """
    what = f"finding wheels for the nodes: {target.requirements[0]} and its dependencies"
    started = time.monotonic()
    report(Event(kind="start", what=what))
    try:
        wheels = find_wheels(target, requirements, built=built)
    except ClusterError:
        report(Event(kind="failed", what=what))
        raise
    described = map_in_threads(lambda wheel, _: _describe(wheel, cache), wheels, threads=AT_ONCE)
    files = tuple(sorted(described, key=lambda file: file.name))
    check_hashes([(file.name, file.sha256) for file in files], target, built=built)
    report(Event(kind="done", what=what, duration_s=time.monotonic() - started))
    return files


def is_here(file: BundleFile) -> bool:
    """Whether a file is at its path on this machine, as far as its size shows."""
    return file.path.is_file() and file.path.stat().st_size == file.size_bytes


def bring_here(file: BundleFile, *, grew: Callable[[int], None] = lambda _: None) -> None:
    """Fetches a file from its URLs to its path on this machine. It appears at the path only when whole and checked.

    grew: called with the number of bytes that have arrived. Raises ClusterError.
    """
    if is_here(file):
        return
    discard_folder(file.path)
    why = ["it is no longer on this machine, and has no URL"]
    for number, url in enumerate(url for url in file.urls for _ in range(TRIES)):
        if number:
            time.sleep(FIRST_PAUSE_S * 2 ** ((number - 1) % TRIES))
        try:
            with written_whole(file.path) as temporary:
                _download(url, temporary, grew)
                _check(file, temporary)
        except _BROKEN as error:
            why = [f"{url}: {error}"]
            continue
        return
    raise ClusterError(
        f"{file.name} could not be fetched: {'; '.join(why)}",
        hint="run the command again, or check that this machine reaches the package index",
    )


def _check(file: BundleFile, path: Path) -> None:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != file.sha256:
        raise OSError(f"the download has the SHA-256 {digest}, not {file.sha256}")


def _describe(wheel: FoundWheel, cache: Path) -> BundleFile:
    parts = urlsplit(wheel.url)
    name = unquote(parts.path).rpartition("/")[2]
    if parts.scheme == "file":
        return _copy(Path(unquote(parts.path)), cache)
    if not wheel.sha256:
        raise NoUrlError(f"the package index does not publish the SHA-256 of {name}")
    url = parts._replace(fragment="").geturl()
    try:
        size_bytes, tail = _read_tail(url)
    except _BROKEN as error:
        raise NoUrlError(f"{name} cannot be fetched directly from {parts.hostname}: {error}") from error
    return BundleFile(
        path=find_place(cache, wheel.sha256, name),
        sha256=wheel.sha256,
        size_bytes=size_bytes,
        unpacked_bytes=find_unpacked_bytes(tail) or size_bytes * UNPACKED_TIMES,
        urls=(url,),
    )


def _copy(path: Path, cache: Path) -> BundleFile:
    described = describe_file(path)
    kept = find_place(cache, described.sha256, described.name)
    discard_folder(kept)
    with written_whole(kept) as temporary:
        shutil.copyfile(path, temporary)
    return replace(described, path=kept)


def _read_tail(url: str) -> tuple[int, bytes]:
    """A file's size in bytes, and its last bytes; b"" if the server does not support ranges."""
    request = urllib.request.Request(url, headers={"Range": f"bytes=-{TAIL_BYTES}"})  # noqa: S310 - pip's own choice
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - the same
        if answer.status == http.client.PARTIAL_CONTENT:
            return int(answer.headers["Content-Range"].rpartition("/")[2]), answer.read()
        if answer.headers["Content-Length"] is None:
            raise OSError("the server does not report the file's size")
        return int(answer.headers["Content-Length"]), b""


def find_unpacked_bytes(tail: bytes) -> int | None:
    """The unpacked size of a wheel in bytes, from the zip directory at its end; None if that is incomplete. Pure."""
    try:
        with zipfile.ZipFile(io.BytesIO(tail)) as wheel:
            return sum(entry.file_size for entry in wheel.infolist())
    except zipfile.BadZipFile:
        return None


def _download(url: str, path: Path, grew: Callable[[int], None]) -> None:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer, path.open("wb") as file:  # noqa: S310 - the same
        while data := answer.read(READ_BYTES):
            file.write(data)
            grew(len(data))
