"""An S3 that keeps nothing and is in nobody's way: what is put is counted and dropped, what is got comes from one file.

    python -m bench.s3_sink FILE     prints its port

It speaks as much of S3 as `cluster data put` and `get`, s5cmd and aws-cli need, in threads of one process: bytes are
moved by recv_into and sendfile, without Python touching them. An object has the name and size that it was put with, so
that listings and HEAD are true; its bytes are those of FILE, and what S3 would say of them, its ETag and its checksum
of all bytes, is what the objects of FILE's size have. Checksums that arrive are answered as S3 answers them; signatures
are not looked at. A small object's ETag is its MD5.
"""

import base64
import hashlib
import re
import socket
import sys
import threading
import zlib
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUFFER_BYTES = 1 << 20
SMALL_BYTES = 1 << 20
STORED = "2026-01-01T00:00:00.000Z"


@dataclass
class World:
    """What there is: keys with their sizes, and how many bytes came."""

    path: Path
    size_bytes: int
    etag: str
    crc32: str
    keys: dict[str, int] = field(default_factory=dict)
    uploads: dict[str, int] = field(default_factory=dict)
    received: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def describe_file(path: Path) -> World:
    """The file that every GET answers with. It is read once."""
    crc, parts = 0, b""
    with path.open("rb") as file:
        while piece := file.read(8 << 20):
            crc = zlib.crc32(piece, crc)
            parts += hashlib.md5(piece).digest()
    etag = f'"{hashlib.md5(parts).hexdigest()}-{len(parts) // 16}"'
    return World(
        path=path, size_bytes=path.stat().st_size, etag=etag, crc32=base64.b64encode(crc.to_bytes(4, "big")).decode()
    )


class Connection:
    """One client's connection."""

    def __init__(self, client: socket.socket, world: World) -> None:
        self._socket = client
        self._world = world
        self._left = b""
        self._scratch = bytearray(BUFFER_BYTES)

    def serve(self) -> None:
        """Answer until the client leaves."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._socket, self._world.path.open("rb") as file:
            try:
                while head := self._read_head():
                    self._answer(head, file)
            except OSError:
                return  # the client is gone

    def _read_head(self) -> str:
        while b"\r\n\r\n" not in self._left:
            piece = self._socket.recv(65536)
            if not piece:
                return ""
            self._left += piece
        head, _, self._left = self._left.partition(b"\r\n\r\n")
        return head.decode("latin-1")

    def _drop(self, size_bytes: int) -> None:
        size_bytes -= len(self._left[:size_bytes])
        self._left = b""
        while size_bytes > 0:
            got = self._socket.recv_into(self._scratch, min(size_bytes, BUFFER_BYTES))
            if not got:
                raise ConnectionResetError
            size_bytes -= got

    def _read_body(self, size_bytes: int) -> bytes:
        while len(self._left) < size_bytes:
            piece = self._socket.recv(65536)
            if not piece:
                raise ConnectionResetError
            self._left += piece
        body, self._left = self._left[:size_bytes], self._left[size_bytes:]
        return body

    def _answer(self, head: str, file: object) -> None:
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        url = urlsplit(target)
        query = parse_qs(url.query, keep_blank_values=True)
        key = unquote(url.path)
        size = int(headers.get("content-length", 0))
        if headers.get("expect") == "100-continue":
            self._socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if method == "PUT":
            self._put(key, query, headers, size)
        elif method == "POST":
            self._post(key, query, self._read_body(size))
        elif method in {"GET", "HEAD"}:
            self._get(method, key, query, headers, file)
        else:
            self._drop(size)
            self._send("204 No Content")

    def _put(self, key: str, query: dict[str, list[str]], headers: dict[str, str], size: int) -> None:
        etag = "0" * 32
        if size <= SMALL_BYTES:
            etag = hashlib.md5(self._read_body(size)).hexdigest()
        else:
            self._drop(size)
        size = int(headers.get("x-amz-decoded-content-length", size))
        world = self._world
        with world.lock:
            world.received += size
            if "uploadId" in query:
                world.uploads[query["uploadId"][0]] += size
            else:
                world.keys[key] = size
        kept = {name: value for name, value in headers.items() if name.startswith("x-amz-checksum-")}
        self._send("200 OK", ETag=f'"{etag}"', **kept)

    def _post(self, key: str, query: dict[str, list[str]], _body: bytes) -> None:
        world = self._world
        if "uploads" in query:
            with world.lock:
                upload_id = f"upload{len(world.uploads)}"
                world.uploads[upload_id] = 0
            self._xml("InitiateMultipartUploadResult", f"<Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId>")
        else:
            with world.lock:
                world.keys[key] = world.uploads[query["uploadId"][0]]
            self._xml("CompleteMultipartUploadResult", f"<ETag>&quot;{'0' * 32}-2&quot;</ETag>")

    def _get(self, method: str, key: str, query: dict[str, list[str]], headers: dict[str, str], file: object) -> None:
        world = self._world
        if not key.strip("/").count("/"):
            return self._list(key, query)
        if key not in world.keys:
            return self._send("404 Not Found")
        size = world.keys[key]
        begin, end, status = 0, size, "200 OK"
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", "")):
            begin, end = int(found[1]), min(int(found[2] or size) + 1, size)
            status = "206 Partial Content"
        extra = {"Accept-Ranges": "bytes", "ETag": world.etag, "Last-Modified": formatdate(0, usegmt=True)}
        if status.startswith("206"):
            extra["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        elif headers.get("x-amz-checksum-mode", "").upper() == "ENABLED" and size == world.size_bytes:
            extra |= {"x-amz-checksum-crc32": world.crc32, "x-amz-checksum-type": "FULL_OBJECT"}
        self._send(status, length=end - begin, **extra)
        if method == "GET":
            self._socket.sendfile(file, begin, end - begin)  # type: ignore[arg-type]
        return None

    def _list(self, path: str, query: dict[str, list[str]]) -> None:
        bucket = path.strip("/").partition("/")[0]
        prefix = query.get("prefix", [""])[0]
        limit = int(query.get("max-keys", ["1000"])[0])
        world = self._world
        names = sorted(key.removeprefix(f"/{bucket}/") for key in list(world.keys) if key.startswith(f"/{bucket}/"))
        names = [name for name in names if name.startswith(prefix)][:limit]
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>{STORED}</LastModified><ETag>{escape(world.etag)}</ETag>"
            f"<Size>{world.keys[f'/{bucket}/{name}']}</Size></Contents>"
            for name in names
        )
        self._xml("ListBucketResult", f"<Name>{bucket}</Name><IsTruncated>false</IsTruncated>{rows}")

    def _xml(self, name: str, inner: str) -> None:
        body = f'<?xml version="1.0"?><{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}</{name}>'
        self._send("200 OK", length=len(body.encode()), **{"Content-Type": "application/xml"})
        self._socket.sendall(body.encode())

    def _send(self, status: str, length: int = 0, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {length}", *(f"{n}: {v}" for n, v in headers.items())]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))


def main() -> None:
    """Serve until killed."""
    world = describe_file(Path(sys.argv[1]))
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listener.getsockname()[1], flush=True)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=Connection(client, world).serve, daemon=True).start()


if __name__ == "__main__":
    main()
