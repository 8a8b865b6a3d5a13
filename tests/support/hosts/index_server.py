"""A package index over real HTTP, with faults, and wheels for it."""

import base64
import hashlib
import http.server
import io
import re
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from urllib.parse import quote

from http_server import serve_http

CUT_BYTES = 1000


def make_wheel(folder: Path, name: str, content: Mapping[str, bytes], *, requires: str = "") -> Path:
    """Writes a wheel that pip and uv can install; the same content gives the same bytes."""
    project, wheel_version, *tags = name.removesuffix(".whl").split("-")
    info = f"{project}-{wheel_version}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    metadata = {
        "METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {wheel_version}\n{needs}",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {'-'.join(tags)}\n",
        "RECORD": "",
    }
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        files = {**content, **{f"{info}/{path}": text.encode() for path, text in metadata.items()}}
        for path, data in files.items():
            wheel.writestr(zipfile.ZipInfo(path), data, zipfile.ZIP_DEFLATED)
    return folder / name


def make_source(folder: Path, name: str, content: Mapping[str, bytes]) -> Path:
    """Writes a source distribution; the same content gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    project, version = name.removesuffix(".tar.gz").rsplit("-", 1)
    metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n".encode()
    with tarfile.open(folder / name, "w:gz", compresslevel=1) as packed:
        for path, data in {"PKG-INFO": metadata, **content}.items():
            entry = tarfile.TarInfo(f"{project}-{version}/{path}")
            entry.size = len(data)
            packed.addfile(entry, io.BytesIO(data))
    return folder / name


@dataclass
class Index:
    """Serves a folder of wheels and source distributions by PEP 503 and PEP 658, and records the requests.

    asked: each request's path and Range. failing, cutting: how many of the next answers are 503, or are cut off.
    ranges: whether it supports ranges. flip: whether files are damaged.
    refusal: an answer for all files, such as a redirect. digest: that of the files, in the pages. delay_s: the wait
    before a file is sent. login: the NAME:PASSWORD that it wants.
    """

    folder: Path
    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    failing: int = 0
    cutting: int = 0
    ranges: bool = True
    flip: bool = False
    refusal: tuple[int, bytes] | tuple[int, bytes, Mapping[str, str]] | None = None
    digest: str = "sha256"
    delay_s: float = 0.0
    login: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def asked_for(self, ending: str) -> list[str]:
        """The requested ranges of paths with this ending."""
        return [wanted for path, wanted in self.asked if path.endswith(ending)]

    def take_one(self, what: str) -> bool:
        """Uses up one of the faults that are left; returns whether there was one."""
        with self.lock:
            left = getattr(self, what)
            setattr(self, what, max(0, left - 1))
        return bool(left)

    def find_page(self, path: str) -> bytes | None:
        """The page of the index at a path; None if there is none."""
        if not path.startswith("/simple/"):
            return None
        project = path.removeprefix("/simple/").strip("/")
        links = []
        for file in sorted((*self.folder.glob("*.whl"), *self.folder.glob("*.tar.gz"))):
            if file.name.split("-")[0].replace("_", "-").lower() == project:
                digest = hashlib.new(self.digest, file.read_bytes()).hexdigest()
                address = f"../../files/{quote(file.name)}#{self.digest}={digest}"
                metadata = ' data-core-metadata="true"' if file.suffix == ".whl" else ""
                links.append(f'<a href="{address}"{metadata}>{escape(file.name)}</a><br>')
        return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode() if links else None

    def find_file(self, path: str) -> bytes | None:
        """The bytes of a wheel or of its metadata; None if there is no such file."""
        name = path.rpartition("/")[2].replace("%2B", "+")
        wheel = self.folder / name.removesuffix(".metadata")
        if not path.startswith("/files/") or not wheel.is_file():
            return None
        if name.endswith(".metadata"):
            with zipfile.ZipFile(wheel) as opened:
                return next(opened.read(entry) for entry in opened.namelist() if entry.endswith("/METADATA"))
        data = wheel.read_bytes()
        return data[:-1] + bytes([data[-1] ^ 1]) if self.flip else data


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    index: Index

    def do_GET(self) -> None:
        index = self.index
        index.asked.append((self.path, self.headers.get("Range", "")))
        login = f"Basic {base64.b64encode(index.login.encode()).decode()}"
        if index.login and self.headers.get("Authorization") != login:
            self.answer(401, b"", {"WWW-Authenticate": "Basic"})
            return
        page = index.find_page(self.path)
        if page is not None:
            self.answer(200, page, {"Content-Type": "text/html"})
            return
        data = index.find_file(self.path.partition("?")[0])
        if data is None:
            self.answer(404, b"")
        elif self.path.endswith(".metadata"):
            self.answer(200, data)
        elif index.refusal is not None:
            self.answer(*index.refusal)
        elif index.take_one("failing"):
            self.answer(503, b"")
        else:
            time.sleep(index.delay_s)
            self.answer_part(data)

    do_HEAD = do_GET  # noqa: N815 - http.server's names

    def answer_part(self, data: bytes) -> None:
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or not self.index.ranges:
            self.answer(200, data)
            return
        first, last = wanted.groups()
        begin = int(first) if first else max(0, len(data) - int(last))
        end = min(int(last) + 1 if first and last else len(data), len(data))
        self.answer(206, data[begin:end], {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})

    def answer(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if len(data) > CUT_BYTES and self.index.take_one("cutting"):
            self.wfile.write(data[:CUT_BYTES])
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def serve_index(folder: Path) -> Iterator[Index]:
    """Serves a folder until the block ends."""
    index = Index(folder=folder)
    with serve_http(type("IndexHandler", (Handler,), {"index": index})) as index.url:
        yield index
