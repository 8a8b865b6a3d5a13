"""Which wheels the nodes need and where the package index has them, without their passing through this machine."""

import concurrent.futures
import contextlib
import hashlib
import http.client
import io
import json
import os
import shutil
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bootstrap.pip import FoundWheel, find_wheels
from bootstrap.shelf import BundleFile, describe_file
from bootstrap.wheels import WheelTarget
from provision.errors import ClusterError
from provision.progress import Event, Report

TAIL_BYTES = 512 << 10
"""What is read of a wheel to know its size and what it unpacks to: its end has the table of its content."""
UNPACKED_TIMES = 4
"""What a wheel grows to when that cannot be found out: MXNet's grow to 2.5 to 3.5 times their size."""
TIMEOUT_S = 30
TRIES = 4
FIRST_PAUSE_S = 0.5
AT_ONCE = 8
READ_BYTES = 1 << 20
HERE_HINT = 'set [bootstrap] distribute = "chain" and fetch = "here": then wheels come through this machine'
_BROKEN = (OSError, http.client.HTTPException)


class NoUrlError(ClusterError):
    """A wheel cannot be had from the index's URL alone: it wants a password, say, which nodes are not given."""


def resolve_wheels(
    target: WheelTarget, requirements: Sequence[str], *, key: str, pins: Sequence[str], cache: Path, report: Report
) -> tuple[BundleFile, ...]:
    """The wheels for a target, in order of their names; `path` is where each is kept here once it is fetched.

    They are those of the first time, for as long as the cache is kept. pins: if not empty, the exact versions that
    are wanted instead, all of them. Wheels from folders of this machine are copied to the cache, and have no URLs.
    Raises NoUrlError, ClusterError with pip's own words.
    """
    found = find_resolved(key, cache=cache)
    if found is not None:
        return found
    what = f"looking for the wheels for the nodes: {target.requirements[0]} and what it needs"
    started = time.monotonic()
    report(Event(kind="start", what=what))
    wheels = find_wheels(target, pins or requirements, alone=bool(pins))
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        described = list(pool.map(lambda wheel: _describe(wheel, cache), wheels))
    files = tuple(sorted(described, key=lambda file: file.name))
    _write(_resolved_path(key, cache), files)
    report(Event(kind="done", what=what, duration_s=time.monotonic() - started))
    return files


def find_resolved(key: str, *, cache: Path) -> tuple[BundleFile, ...] | None:
    """What was found before; None where there is nothing, or a file of it that has no URL is gone."""
    try:
        entries = json.loads(_resolved_path(key, cache).read_text(encoding="utf-8"))
        files = tuple(
            BundleFile(
                path=_kept_path(entry["sha256"], entry["name"], cache),
                sha256=entry["sha256"],
                size_bytes=entry["size_bytes"],
                unpacked_bytes=entry["unpacked_bytes"],
                urls=tuple(entry["urls"]),
            )
            for entry in entries
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return files if all(file.urls or file.path.exists() for file in files) else None


def bring_here(file: BundleFile, *, report: Report) -> None:
    """Fetch a file from its URLs to this machine, to its path, whole and checked or not at all.

    Raises ClusterError.
    """
    if file.path.exists():
        return
    what = f"fetching {file.name}, {file.size_bytes / 1e6:.0f} MB"
    started = time.monotonic()
    report(Event(kind="start", what=what))
    why = ["it is gone from this machine, and has no URL"]
    for number, url in enumerate(url for url in file.urls for _ in range(TRIES)):
        if number:
            time.sleep(FIRST_PAUSE_S * 2 ** ((number - 1) % TRIES))
        try:
            with _written(file.path) as temporary:
                _download(url, temporary)
                _check(file, temporary)
        except _BROKEN as error:
            why = [f"{url}: {error}"]
            continue
        report(Event(kind="done", what=what, duration_s=time.monotonic() - started))
        return
    raise ClusterError(
        f"{file.name} could not be fetched: {'; '.join(why)}",
        hint="the same command again, or check that this machine reaches the package index",
    )


def _check(file: BundleFile, path: Path) -> None:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != file.sha256:
        raise OSError(f"what came has the SHA-256 {digest}, not {file.sha256}")


def _describe(wheel: FoundWheel, cache: Path) -> BundleFile:
    parts = urlsplit(wheel.url)
    name = unquote(parts.path).rpartition("/")[2]
    if parts.scheme == "file":
        return _copy(Path(unquote(parts.path)), cache)
    if not wheel.sha256:
        raise NoUrlError(f"the package index does not tell the SHA-256 of {name}", hint=HERE_HINT)
    url = parts._replace(fragment="").geturl()
    try:
        size_bytes, tail = _read_tail(url)
    except _BROKEN as error:
        raise NoUrlError(
            f"{name} cannot be had from its URL alone, {parts.hostname}: {error}", hint=HERE_HINT
        ) from error
    return BundleFile(
        path=_kept_path(wheel.sha256, name, cache),
        sha256=wheel.sha256,
        size_bytes=size_bytes,
        unpacked_bytes=find_unpacked_bytes(tail) or size_bytes * UNPACKED_TIMES,
        urls=(url,),
    )


def _copy(path: Path, cache: Path) -> BundleFile:
    described = describe_file(path)
    kept = _kept_path(described.sha256, described.name, cache)
    if not kept.exists():
        with _written(kept) as temporary:
            shutil.copyfile(path, temporary)
    return BundleFile(
        path=kept,
        sha256=described.sha256,
        size_bytes=described.size_bytes,
        unpacked_bytes=described.unpacked_bytes,
    )


def _read_tail(url: str) -> tuple[int, bytes]:
    """A file's size in bytes, and its end; no bytes where the server cannot give a part."""
    request = urllib.request.Request(url, headers={"Range": f"bytes=-{TAIL_BYTES}"})  # noqa: S310 - pip's own choice
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - the same
        if answer.status == http.client.PARTIAL_CONTENT:
            return int(answer.headers["Content-Range"].rpartition("/")[2]), answer.read()
        if answer.headers["Content-Length"] is None:
            raise OSError("the server does not tell the file's size")
        return int(answer.headers["Content-Length"]), b""


def find_unpacked_bytes(tail: bytes) -> int | None:
    """What a wheel unpacks to, by the table of content at its end; None where the table is not all there. Pure."""
    try:
        with zipfile.ZipFile(io.BytesIO(tail)) as wheel:
            return sum(entry.file_size for entry in wheel.infolist())
    except zipfile.BadZipFile:
        return None


def _download(url: str, path: Path) -> None:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer, path.open("wb") as file:  # noqa: S310 - the same
        shutil.copyfileobj(answer, file, READ_BYTES)


def _resolved_path(key: str, cache: Path) -> Path:
    return cache / "resolved" / f"{key}.json"


def _kept_path(sha256: str, name: str, cache: Path) -> Path:
    return cache / "wheels" / sha256 / name


def _write(path: Path, files: Sequence[BundleFile]) -> None:
    entries = [
        {
            "name": file.name,
            "sha256": file.sha256,
            "size_bytes": file.size_bytes,
            "unpacked_bytes": file.unpacked_bytes,
            "urls": file.urls,
        }
        for file in files
    ]
    with _written(path) as temporary:
        temporary.write_text(json.dumps(entries, indent=2), encoding="utf-8")


@contextlib.contextmanager
def _written(path: Path) -> Iterator[Path]:
    """A file to write beside the one that it becomes when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent.parent, prefix=".fetching-")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
