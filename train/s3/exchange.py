"""Requests to S3 by the shortest way: connections that are kept, a signature, and answers without a body.

It understands a plain yes and nothing else. Whatever S3 says besides, and whatever is in between, is left to botocore,
which repeats what helps to be repeated, follows S3 to where a bucket is, and finds words for the rest. To load botocore
takes as long as a thousand small objects do by this way. obstore takes longer, too, and does not tell the checksums
that S3 answers with.
"""

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from train.node import aws_signature
from train.s3.access import S3Endpoint
from train.s3.lanes import Talk, Wait, finish
from train.s3.url import S3Url

if TYPE_CHECKING:
    import ssl

_CONNECT_TIMEOUT_S = 20
_TIMEOUT_S = 60
"""Without a byte moving. What is sent may wait in this machine for its turn on a slow line, and that looks the same."""
_IDLE_S = 3.0
"""Less than what S3 and the servers like it wait before they close a connection that nobody uses."""
_MOST_HEAD_BYTES = 65536
_YES = "HTTP/1.1 200 "
_NEW, _GOOD, _DOUBTFUL, _ASKED, _FAILED = range(5)  # an address, in the order in which it is chosen
_Address = tuple[Any, ...]  # as getaddrinfo has it
Result = TypeVar("Result")


class UnsureError(Exception):
    """A fast way failed, or cannot tell: the same is asked by botocore, which finds words for it."""


class Exchange:
    """Asks S3 at an endpoint, for buckets of a region. Any thread may ask."""

    def __init__(self, endpoint: S3Endpoint, *, region: str) -> None:
        self._endpoint = endpoint
        self._region = region
        self._tls = None
        try:
            self._where = urlsplit(endpoint.url or _url_of_aws(region))
            self._is_plain = _is_plain(self._where)
            if self._is_plain and self._where.scheme == "https":
                self._tls = _open_tls(endpoint)
        except (OSError, ValueError):  # no address, or no certificates: ssl's own errors are OSErrors
            self._is_plain = False
        self._kept: list[tuple[float, socket.socket]] = []  # since when nobody uses them
        self._addresses = _Addresses()

    def ask(self, method: str, url: S3Url, headers: Mapping[str, str], content: bytes = b"") -> Mapping[str, str]:
        """The headers of S3's yes, with names in lower case. method: one whose answers have no body.

        Raises UnsureError; AwsError where there are no credentials any more.
        """
        return finish(self.talk(method, url, headers, content))

    def talk(
        self, method: str, url: S3Url, headers: Mapping[str, str], content: bytes = b""
    ) -> Talk[Mapping[str, str]]:
        """The same, for who carries on several side by side."""
        if not self._is_plain:
            raise UnsureError
        try:
            head = self._sign(method, url, headers, content)
            connection = self._take()
            if connection is None:
                connection = yield from self._connect()
            try:
                yield from _send(connection, head, content, is_plain=self._tls is None)
                told, whole = yield from _read_answer(connection)
            except BaseException:
                connection.close()
                raise
        except (OSError, ValueError) as error:
            raise UnsureError from error
        if whole and told.get("connection", "").lower() != "close" and _has_no_body(method, told):
            self._kept.append((time.monotonic(), connection))
        else:
            connection.close()
        return told

    def _sign(self, method: str, url: S3Url, headers: Mapping[str, str], content: bytes) -> bytes:
        # As the parts of large files are sent: a checksum in a signed header says what it is.
        digest = "UNSIGNED-PAYLOAD" if content else aws_signature.EMPTY_SHA256
        request = aws_signature.Request(
            method=method,
            host=self._where.netloc,
            path=aws_signature.encode(f"/{url.bucket}/{url.key}", safe="/"),
            query="",
            headers=dict(headers),
            payload_sha256=digest,
        )
        told = self._endpoint.credentials()
        keys = aws_signature.Keys(told["access_key_id"], told["secret_access_key"], told.get("token"))
        signed = aws_signature.sign(request, keys, self._region, time.time())
        if not all(value.isascii() and value.isprintable() for value in signed.values()):
            raise UnsureError  # a line's end in a header would begin another one
        lines = [f"{method} {request.path} HTTP/1.1", *(f"{name}: {value}" for name, value in signed.items())]
        if method == "PUT":
            lines.append(f"Content-Length: {len(content)}")
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def _take(self) -> socket.socket | None:
        """A connection that nobody uses."""
        try:
            while True:
                since, connection = self._kept.pop()
                if time.monotonic() - since < _IDLE_S:
                    return connection
                connection.close()
        except IndexError:  # another thread may be faster than a look
            return None

    def _connect(self) -> Talk[socket.socket]:
        """A new one, to one of S3's addresses that answers. Raises OSError."""
        host = str(self._where.hostname)
        port = self._where.port or (80 if self._tls is None else 443)
        self._addresses.look_up(host, port)
        failure = OSError(f"{host}: no address")
        tried: set[_Address] = set()
        while (address := self._addresses.take(tried)) is not None:
            tried.add(address)
            try:
                connection = yield from self._reach(address, host)
            except OSError as error:
                self._addresses.note(address, _FAILED)
                failure = error
            else:
                self._addresses.note(address, _GOOD)
                return connection
        self._addresses.forget()
        raise failure

    def _reach(self, address: _Address, host: str) -> Talk[socket.socket]:
        connection = socket.socket(*address[:3])
        try:
            yield from _open(connection, address[4])
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=host, do_handshake_on_connect=False)
                yield from _when_ready(connection.do_handshake, connection, select.POLLIN)
        except BaseException:
            connection.close()
            raise
        return connection


class _Addresses:
    """A server's. One that is silent costs a connection half a minute, so each is tried by one before it is by more.

    Connections are spread over all that answer, as S3 advises:
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-design-patterns.html
    Those that do not come last, and so do those that were not asked yet where nobody of their family has answered, as
    IPv6 where it leads nowhere. For any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[_Address, int] = {}  # whose turn it is, first

    def look_up(self, host: str, port: int) -> None:
        """Once: whoever is carried on in the same thread waits meanwhile. Raises OSError."""
        if not self._states:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            with self._lock:
                self._states = dict.fromkeys(found, _NEW)

    def take(self, tried: Collection[_Address]) -> _Address | None:
        """The one to try next."""
        with self._lock:
            asked = {address[0] for address, state in self._states.items() if state != _NEW}
            good = {address[0] for address, state in self._states.items() if state == _GOOD}

            def judge(address: _Address) -> int:
                state = self._states[address]
                return _DOUBTFUL if state == _NEW and address[0] in asked - good else state

            address = min((address for address in self._states if address not in tried), key=judge, default=None)
            if address is not None:
                state = self._states.pop(address)
                self._states[address] = _ASKED if state == _NEW else state
            return address

    def note(self, address: _Address, state: int) -> None:
        """What became of it."""
        with self._lock:
            if address in self._states:
                self._states[address] = state

    def forget(self) -> None:
        """All of them: none answers, it may have others by now."""
        with self._lock:
            self._states = {}


def _url_of_aws(region: str) -> str:
    return f"https://s3.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")


def _is_plain(where: SplitResult) -> bool:
    """Whether it is an address that is asked itself: no folder of a server, and no proxy before it."""
    if where.scheme not in {"http", "https"} or not where.hostname or "@" in where.netloc or where.path.strip("/"):
        return False
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return True
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - slow to import

    return getproxies().keys().isdisjoint({where.scheme, "all"}) or bool(proxy_bypass(where.netloc))


def _open_tls(endpoint: S3Endpoint) -> "ssl.SSLContext":
    import ssl  # noqa: PLC0415 - slow to import

    context = ssl.create_default_context()
    if endpoint.authorities:
        context.load_verify_locations(cadata=endpoint.authorities)
    return context


def _open(connection: socket.socket, address: tuple[Any, ...]) -> Talk[None]:
    connection.setblocking(False)  # noqa: FBT003 - Python takes it by position alone
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    code = connection.connect_ex(address)
    if code == errno.EINPROGRESS:
        yield Wait(connection, select.POLLOUT, _CONNECT_TIMEOUT_S)
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _send(connection: socket.socket, head: bytes, content: bytes, *, is_plain: bool) -> Talk[None]:
    if is_plain:  # TLS has no sendmsg, and copies all of it in any case
        count = yield from _when_ready(partial(connection.sendmsg, (head, content)), connection, select.POLLOUT)
        left = memoryview(head[count:] + content) if count < len(head) else memoryview(content)[count - len(head) :]
    else:
        left = memoryview(head + content)
    while left:
        count = yield from _when_ready(partial(connection.send, left), connection, select.POLLOUT)
        left = left[count:]


def _read_answer(connection: socket.socket) -> Talk[tuple[Mapping[str, str], bool]]:
    """(the headers of a yes, whether nothing came behind them). Raises UnsureError, OSError."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = yield from _when_ready(partial(connection.recv, _MOST_HEAD_BYTES), connection, select.POLLIN)
        if not piece or len(answer) > _MOST_HEAD_BYTES:
            raise UnsureError
        answer += piece
    head, _, more = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    if not status.startswith(_YES):
        raise UnsureError
    parts = (line.partition(":") for line in lines)
    return {name.lower(): value.strip() for name, _, value in parts}, not more


def _when_ready(act: Callable[[], Result], connection: socket.socket, events: int) -> Talk[Result]:
    """What it gives, as soon as it does not have to wait for that. Raises what it raises."""
    while True:
        try:
            return act()
        except BlockingIOError:
            wanted = events
        except OSError as error:
            wanted = _find_wanted(error)
        yield Wait(connection, wanted, _TIMEOUT_S)


def _find_wanted(error: OSError) -> int:
    """What TLS waits for, which may have to read before it writes, and to write before it reads. Raises the error."""
    import ssl  # noqa: PLC0415 - slow to import: for who uses it, or fails

    if isinstance(error, ssl.SSLWantReadError):
        return select.POLLIN
    if isinstance(error, ssl.SSLWantWriteError):
        return select.POLLOUT
    raise error


def _has_no_body(method: str, told: Mapping[str, str]) -> bool:
    return method == "HEAD" or told.get("content-length") == "0"
