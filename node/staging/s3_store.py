"""Opens a bucket with obstore, and puts files there, on this machine and on the nodes."""

from __future__ import annotations

import html
import io
import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from obstore.store import S3Store

from node.staging.integrity import MAX_PARTS, MIB

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential

FIRST_PAUSE = timedelta(seconds=0.5)
"""Before obstore's first retry; the others grow from it. After its own 0.1 s, an outage of a second fails a copy."""
Version = tuple[int, int]
"""The size and mtime_ns of a file."""


class Changed(OSError):
    """The file was changed while it was read."""


class Source(io.FileIO):
    """A file to put. version: a read fails if the file has another one at its end, so that no mixture is stored.

    watch: called at each read, with the number of bytes that were read for the first time; may raise to stop.
    """

    def __init__(
        self,
        path: os.PathLike[str] | str,
        version: Version | None = None,
        watch: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__(path)
        self.size_bytes = os.fstat(self.fileno()).st_size
        self._version, self._watch = version, watch
        self._read_bytes = 0
        self._error: BaseException | None = None

    def put(self, store: S3Store, key: str, *, most_bytes: int, part_bytes: int, parts_at_once: int) -> str:
        """Puts all of the file, or nothing. Returns the object's ETag. most_bytes: larger files are sent in parts.

        part_bytes: see find_part_bytes. Raises obstore's errors, also if a read fails: then `raise_error` has the
        reason.
        """
        in_parts = self.size_bytes > most_bytes
        done = obstore.put(
            store,
            key,
            self if in_parts else b"".join(iter(lambda: self.read(self.size_bytes + 1), b"")),
            use_multipart=in_parts,
            chunk_size=find_part_bytes(self.size_bytes, least=part_bytes),
            max_concurrency=parts_at_once,
        )
        return done["e_tag"] or ""

    def read(self, size: int | None = -1, /) -> bytes:
        """As in io.FileIO. Raises Changed, OSError, and what `watch` raises."""
        try:
            data = super().read(size) or b""
            if self.tell() >= self.size_bytes or not data:
                self._check_unchanged()
            new = max(self.tell() - self._read_bytes, 0)
            self._read_bytes += new
            self._watch(new)
        except BaseException as error:
            self._error = error
            raise
        return data

    def _check_unchanged(self) -> None:
        after, at = os.fstat(self.fileno()), self.tell()
        # Files in /proc have other sizes than they say.
        if self._version not in (None, (after.st_size, after.st_mtime_ns)) or (self._version and at != after.st_size):
            raise Changed(f"it was changed while it was read: {at} bytes of {self.size_bytes}")

    def raise_error(self) -> None:
        """Raises the error of a failed read, if there was one."""
        if self._error is not None:
            raise self._error


def find_part_bytes(size_bytes: int, *, least: int) -> int:
    """The part size for a file: `least`, or as many whole MiB as MAX_PARTS requires. Pure."""
    wanted = -(-size_bytes // MAX_PARTS)
    return max(least, -(-wanted // MIB) * MIB)


def open_store(
    bucket: str,
    *,
    region: str,
    endpoint: str | None,
    find_keys: Callable[[], S3Credential],
    client: ClientConfig,
    in_host: bool = False,
    max_retries: int,
) -> S3Store:
    """Opens a bucket with obstore. S3 verifies the SHA-256 of uploads; obstore renews the credentials in time.

    endpoint: None for AWS's own. in_host: whether the endpoint's host name contains the bucket, so that paths do not.
    """
    config: S3Config = {
        "region": region,
        "checksum_algorithm": "SHA256",
        "virtual_hosted_style_request": in_host,
    }
    if endpoint:
        config["endpoint"] = endpoint
        client = {**client, "allow_http": endpoint.startswith("http://")}
    return S3Store(
        bucket,
        config=config,
        client_options=client,
        credential_provider=find_keys,
        retry_config={"max_retries": max_retries, "backoff": {"init_backoff": FIRST_PAUSE}},
    )


def find_tag(tag: str, text: str) -> str:
    """Returns the content of a tag of S3's answer in the text of an error; "" if it is not there. Pure."""
    found = re.search(f"<{tag}>([^<]*)</{tag}>", text)
    return html.unescape(found[1]) if found else ""


def find_reason(text: str) -> str | None:
    """Returns why no S3 was reached, by the text of an obstore error; None for another error. Pure."""
    if "InvalidCertificate" in text:
        return "its certificate is not trusted"
    if "ProxyAuthRequired" in text:
        return "the proxy requires a user name and password"
    if "TunnelUnsuccessful" in text:
        return "the proxy refuses the connection"
    cause = re.search(r'(?:message|error): "([^"]+)"', text)
    return cause and cause[1]


def keep_keys(access_key: str, secret_key: str, token: str | None) -> Callable[[], S3Credential]:
    """Returns a function that obstore can call for fixed credentials."""
    keys: S3Credential = {
        "access_key_id": access_key,
        "secret_access_key": secret_key,
        "token": token,
        "expires_at": None,
    }
    return lambda: keys
