"""The socket at which the command line speaks to a sandbox that runs: one JSON object each way, a line each.

Asked: {"do": NAME, ...}. Answered: {"result": ...}, or {"error": "what is wrong"}.
"""

import json
import logging
import os
import queue
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sandbox.faults.faults import KINDS, FaultBook, FaultError, parse_fault

TIMEOUT_S = 30.0
LINE_BYTES = 64 * 1024

Act = Callable[[Mapping[str, str]], str]
"""An immediate fault: gets its parameters and returns what it did, in words. Raises FaultError when it cannot."""

log = logging.getLogger("sandbox.control_socket")


class MainThreadCalls:
    """Work that other threads leave for the main one, which alone may start hosts."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()

    def call(self, function: Callable[[], Any]) -> Any:
        """Has the main thread call the function, and returns or raises what that did. Raises TimeoutError."""
        answer: Future[Any] = Future()
        self._calls.put((function, answer))
        self._wake()
        return answer.result(TIMEOUT_S)

    def run_pending(self) -> None:
        """In the main thread: does what has been left."""
        while not self._calls.empty():
            function, answer = self._calls.get()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(function())
            except Exception as error:  # noqa: BLE001 -- it is the caller's, in its own thread
                answer.set_exception(error)


class Desk:
    """What can be asked of a running sandbox. `immediate`: for each immediate kind of fault, what brings it about."""

    def __init__(self, book: FaultBook, calls: MainThreadCalls, immediate: Mapping[str, Act]) -> None:
        self._book = book
        self._calls = calls
        self._immediate = immediate
        self._known: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "fault": lambda asked: self._cause(str(asked["text"])),
            "faults": lambda _: [asdict(fault) for fault in book.list()],
            "disarm": lambda asked: [asdict(fault) for fault in book.disarm(str(asked["which"]))],
        }

    def answer(self, line: bytes) -> dict[str, Any]:
        """The answer to one line."""
        try:
            asked = json.loads(line)
            return {"result": self._known[asked["do"]](asked)}
        except FaultError as error:
            return {"error": str(error)}
        except TimeoutError:
            return {"error": f"the sandbox did not get to it within {TIMEOUT_S:.0f} s"}
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"not understood: {error!r}"}

    def _cause(self, text: str) -> dict[str, Any]:
        fault = parse_fault(text)
        if KINDS[fault.kind].when == "armed":
            return asdict(self._book.arm(text))
        act = self._immediate.get(fault.kind)
        if act is None:
            raise FaultError(f'{fault.kind}: this sandbox has no hosts ([sandbox] hosts = "none")')
        return {**asdict(fault), "did": self._calls.call(lambda: act(fault.parameters))}


class _Handler(socketserver.StreamRequestHandler):
    timeout = TIMEOUT_S

    def handle(self) -> None:
        """One line in, one line out."""
        assert isinstance(self.server, ControlServer)  # noqa: S101 -- nobody else serves with it
        line = self.rfile.readline(LINE_BYTES)
        answer = json.dumps(self.server.desk.answer(line)).encode() + b"\n"
        try:
            self.wfile.write(answer)
        except OSError as error:  # the one who asked is gone
            log.info("nobody waits for an answer: %s", error)


class ControlServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """The daemon's end of the socket, for the sandbox's owner alone."""

    daemon_threads = True

    def __init__(self, path: Path, desk: Desk) -> None:
        self.desk = desk
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            super().__init__(str(path), _Handler)
        finally:
            os.umask(before)

    def start(self) -> None:
        """Serves from a thread of its own."""
        threading.Thread(target=self.serve_forever, name="control", daemon=True).start()


def ask(path: Path, asked: Mapping[str, Any]) -> Any:
    """The other end: asks a running sandbox, and returns the result.

    Raises OSError when it cannot be reached, FaultError with the sandbox's words when it refuses.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S + 5)
        connection.connect(str(path))
        connection.sendall(json.dumps(asked).encode() + b"\n")
        with connection.makefile("rb") as stream:
            line = stream.readline()
    if not line:
        raise ConnectionResetError("the sandbox closed the connection without an answer")
    answer = json.loads(line)
    if "error" in answer:
        raise FaultError(answer["error"])
    return answer["result"]
