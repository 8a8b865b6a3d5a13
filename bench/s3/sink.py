"""A fast S3 that stores nothing: it counts and discards uploaded bytes, and serves downloads from one file.

    python -m bench.s3.sink FILE                                           prints its port
    python -m bench.s3.sink FOLDER s3://bucket/prefix/ --tls ADDRESS       the files of a folder, over TLS
    python -m bench.s3.sink FILE --latency-ms 20                           delays each response, like S3

It implements the parts of S3 that `cluster data put` and `get`, a job's workers and s5cmd need, in threads of
one process. Bytes are moved by recv_into and sendfile, or by OpenSSL from a mapped file, so Python does not touch them.
An object has the name and size with which it was uploaded, so listings and HEAD are correct. Its bytes are those of
FILE. Objects of FILE's size have the ETag and the full-object checksum that S3 would compute. Uploads return the
checksums that they sent, as in S3. To save time, signatures are not verified, and the ETag in the response to an upload
is not an MD5, as for an object with a customer's KMS key.
"""

import argparse
import os
import re
import socket
import ssl
import threading
import time
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import trustme

from bench.s3.objects import Stored, World, store_file, store_folder

BUFFER_BYTES = 1 << 20
TLS_PIECE_BYTES = 1 << 18
# The ciphers that Amazon's S3 chooses, which cost both ends the least.
CIPHERS = "ECDHE+AESGCM:!AES256"
STORED = "2026-01-01T00:00:00.000Z"


class Connection:
    """The connection of one client."""

    def __init__(self, client: socket.socket, world: World, *, latency_s: float = 0) -> None:
        self._socket = client
        self._world = world
        self._latency_s = latency_s
        self._left = b""
        self._scratch = bytearray(BUFFER_BYTES)

    def serve(self, tls: ssl.SSLContext | None) -> None:
        """Answers requests until the client closes the connection."""
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_side=True)
            while head := self._read_head():
                self._answer(head)
        except OSError:
            return  # the client has closed the connection
        finally:
            self._socket.close()

    def _read_head(self) -> str:
        while b"\r\n\r\n" not in self._left:
            piece = self._socket.recv(65536)
            if not piece:
                return ""
            self._left += piece
        head, _, self._left = self._left.partition(b"\r\n\r\n")
        return head.decode("latin-1")

    def _drop(self, size_bytes: int) -> None:
        begun = min(len(self._left), size_bytes)
        self._left = self._left[begun:]
        size_bytes -= begun
        while size_bytes > 0:
            got = self._socket.recv_into(self._scratch, min(size_bytes, BUFFER_BYTES))
            if not got:
                raise ConnectionResetError
            size_bytes -= got

    def _answer(self, head: str) -> None:
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
            self._drop(size)
            self._post(key, query)
        elif method in {"GET", "HEAD"}:
            self._get(method, key, query, headers)
        else:
            self._drop(size)
            self._send("204 No Content")

    def _put(self, key: str, query: dict[str, list[str]], headers: dict[str, str], size: int) -> None:
        self._drop(size)
        size = int(headers.get("x-amz-decoded-content-length", size))
        world = self._world
        with world.lock:
            world.received += size
            if "uploadId" in query:
                world.uploads[query["uploadId"][0]] += size
            else:
                world.keep(key, size)
        kept = {name: value for name, value in headers.items() if name.startswith("x-amz-checksum-")}
        self._send("200 OK", 0, ETag=f'"{"0" * 32}"', **kept)

    def _post(self, key: str, query: dict[str, list[str]]) -> None:
        world = self._world
        if "uploads" in query:
            with world.lock:
                upload_id = f"upload{len(world.uploads)}"
                world.uploads[upload_id] = 0
            self._xml("InitiateMultipartUploadResult", f"<Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId>")
        else:
            with world.lock:
                world.keep(key, world.uploads[query["uploadId"][0]])
            self._xml("CompleteMultipartUploadResult", f"<ETag>&quot;{'0' * 32}-2&quot;</ETag>")

    def _get(self, method: str, key: str, query: dict[str, list[str]], headers: dict[str, str]) -> None:
        if not key.strip("/").count("/"):
            return self._list(key, query)
        stored = self._world.objects.get(key)
        if stored is None:
            return self._send("404 Not Found")
        size = stored.size_bytes
        begin, end, status = 0, size, "200 OK"
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", "")):
            begin, end = int(found[1]), min(int(found[2] or size) + 1, size)
            status = "206 Partial Content"
        extra = {"Accept-Ranges": "bytes", "ETag": stored.etag, "Last-Modified": formatdate(0, usegmt=True)}
        if status.startswith("206"):
            extra["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        elif headers.get("x-amz-checksum-mode", "").upper() == "ENABLED" and stored.crc32 is not None:
            extra |= {"x-amz-checksum-crc32": stored.crc32, "x-amz-checksum-type": "FULL_OBJECT"}
        self._send(status, length=end - begin, **extra)
        if method == "GET":
            self._send_content(stored, begin, end)
        return None

    def _send_content(self, stored: Stored, begin: int, end: int) -> None:
        if isinstance(self._socket, ssl.SSLSocket):
            for at in range(begin, end, TLS_PIECE_BYTES):
                self._socket.sendall(stored.content[at : min(at + TLS_PIECE_BYTES, end)])
            return
        while begin < end:
            begin += os.sendfile(self._socket.fileno(), stored.file.fileno(), begin, end - begin)

    def _list(self, path: str, query: dict[str, list[str]]) -> None:
        bucket = path.strip("/").partition("/")[0]
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        limit = int(query.get("max-keys", ["1000"])[0])
        found, folders = self._world.list(bucket, prefix, delimiter)
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{STORED}</LastModified><ETag>{escape(stored.etag)}</ETag>"
            f"<Size>{stored.size_bytes}</Size></Contents>"
            for key, stored in found[:limit]
        )
        rows += "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders)
        self._xml("ListBucketResult", f"<Name>{bucket}</Name><IsTruncated>false</IsTruncated>{rows}")

    def _xml(self, name: str, inner: str) -> None:
        body = f'<?xml version="1.0"?><{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}</{name}>'
        self._send("200 OK", length=len(body.encode()), **{"Content-Type": "application/xml"})
        self._socket.sendall(body.encode())

    def _send(self, status: str, length: int = 0, **headers: str) -> None:
        if self._latency_s:
            time.sleep(self._latency_s)
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {length}", *(f"{n}: {v}" for n, v in headers.items())]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))


def make_tls(address: str) -> ssl.SSLContext:
    """Returns a server's TLS context, with a certificate of an unknown authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # the ciphers of 1.3 cannot be chosen from Python
    context.set_ciphers(CIPHERS)
    trustme.CA().issue_cert(address).configure_cert(context)
    return context


def main() -> None:
    """Serves until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--tls", metavar="ADDRESS")
    parser.add_argument("--latency-ms", type=float, default=0)
    asked = parser.parse_args()
    world = World(answer=store_file(asked.path)) if asked.url is None else store_folder(asked.path, asked.url)
    tls = make_tls(asked.tls) if asked.tls else None
    listener = socket.create_server((asked.tls or "127.0.0.1", 0), backlog=256)
    print(listener.getsockname()[1], flush=True)
    while True:
        client, _ = listener.accept()
        connection = Connection(client, world, latency_s=asked.latency_ms / 1000)
        threading.Thread(target=connection.serve, args=(tls,), daemon=True).start()


if __name__ == "__main__":
    main()
