"""Checks one node for `cluster verify`: its disk, the ports of its peers, and everything else with probes.

It writes no files. Requests and answers are JSON, one per line, in this order:

    {"address": ..., "ranges": [[first, last], ...], "loader": ..., "python": ..., "setup": digest or null}
        {"listening": [port, ...], "refused": why not or null, "free": a free port or null, "interface": name or null,
         "disk": [[path, device, free bytes], ...]}
    {"peers": [[name, address, [port, ...]], ...]}
        {"ports": [[peer, port, error or null], ...]}
    {"program": ..., "modules": ..., "order": ..., "timeout_s": ...}, a probe, any number of times
        {"exit_code": ..., "stdout": ..., "stderr": ...}

It also sends {"alive": true} every two seconds. It listens for its peers until its stdin ends: the kernel accepts their
connections. When stdin ends, it ends, and so does its probe. Probes may hang, abort or crash the interpreter, so each
has its own process.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from node.programs import program_words
from node.setup import process_tree, setup_env
from node.setup.interfaces import find_interface
from node.setup.messages import serve

KEPT_BYTES = 1 << 16  # of a probe's output
TIMEOUT_S = 5.0  # of a peer
TRIES = 20
MAX_PARALLEL = 256
BACKLOG = 4096  # one connection from each peer
FREE_RANGE = (20000, 29999)  # below the ports that Linux assigns to clients


def describe_disk() -> list[tuple[str, int, int]]:
    """[path, device, free bytes for ordinary users] of the home folder and of /tmp."""
    paths = (os.path.expanduser("~"), "/tmp")  # noqa: S108 - the folder that programs use
    return [(path, os.stat(path).st_dev, shutil.disk_usage(path).free) for path in paths]


def begin(order: Mapping[str, Any], listeners: list[socket.socket]) -> dict[str, Any]:
    """Listens, and looks at the disk. Returns the answer. listeners: gets the sockets that listen."""
    refused = None
    for first, last in order["ranges"]:
        try:
            listeners.append(listen(order["address"], first, last))
        except OSError as error:
            refused = f"{order['address']} port {first} to {last}: {error.strerror or error}"
            break
    return {
        "listening": [listener.getsockname()[1] for listener in listeners],
        "refused": refused,
        "free": find_free(order["address"]),
        "interface": find_interface(order["address"]),
        "disk": describe_disk(),
    }


# -- probes ------------------------------------------------------------------------------------------------------------


def probe_environment(python: str, setup: str | None) -> dict[str, str]:
    """A probe's environment variables; setup: the digest of the user's set-up commands, or None."""
    # Otherwise the framework would use all cores for six numbers.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    env["PATH"] = f"{os.path.dirname(python)}:/usr/local/bin:/usr/bin:/bin"
    return env if setup is None else setup_env.merge(env, setup_env.read(setup))


def run_probe(order: Mapping[str, Any], probe: Mapping[str, Any]) -> dict[str, Any]:
    """Runs a probe: modules, in the environment's Python, or a program of the runtime. Returns its result.

    exit_code: None if it was killed after its timeout, below 0 if a signal ended it.
    """
    env = probe_environment(order["python"], order["setup"])
    words, lines = [order["python"], "-c", order["loader"]], [probe["modules"], probe["order"]]
    if probe["program"]:
        words, lines = program_words(probe["program"], order["python"]), [probe["order"]]
    process = process_tree.start(words, env, "/", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    given = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    try:
        stdout, stderr = process.communicate(given, timeout=probe["timeout_s"])
        exit_code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        exit_code = None
    except SystemExit:  # the command has ended: so do the processes that the probe has started
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return {"exit_code": exit_code, "stdout": _tail(stdout), "stderr": _tail(stderr)}


def _tail(data: bytes) -> str:
    return data[-KEPT_BYTES:].decode("utf-8", "replace")


# -- ports -------------------------------------------------------------------------------------------------------------


def listen(address: str, first: int, last: int) -> socket.socket:
    """Listens on a random free port from first to last. Returns the socket. Raises OSError after TRIES failures."""
    for left in reversed(range(TRIES)):
        port = random.randint(first, last)  # noqa: S311 - no secret
        try:
            return socket.create_server((address, port), backlog=BACKLOG)
        except OSError:
            if not left:
                raise
    raise AssertionError  # TRIES is not 0


def find_free(address: str) -> int | None:
    """A port that is free at the moment; None if none is found, or if this node does not have the address."""
    try:
        with listen(address, *FREE_RANGE) as listener:
            port: int = listener.getsockname()[1]
            return port
    except OSError:
        return None


def connect_all(targets: Iterable[tuple[str, str, int]]) -> list[tuple[str, int, str | None]]:
    """Connects to (name, address, port) targets in parallel. Returns a list of (name, port, error or None)."""

    def connect(target: tuple[str, str, int]) -> tuple[str, int, str | None]:
        name, address, port = target
        return name, port, try_to_connect(address, port)

    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        return list(pool.map(connect, targets))


def try_to_connect(address: str, port: int) -> str | None:
    """Connects once. Returns the error, or None."""
    try:
        socket.create_connection((address, port), timeout=TIMEOUT_S).close()
    except TimeoutError:
        return "timed out"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


class Verification:
    """The answers, from the first request on, which is the order."""

    def __init__(self) -> None:
        self._order: dict[str, Any] = {}
        self._listeners: list[socket.socket] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        if not self._order:
            self._order = request
            return begin(request, self._listeners)
        if "peers" in request:
            targets = [(name, address, port) for name, address, ports in request["peers"] for port in ports]
            return {"ports": connect_all(targets)}
        return run_probe(self._order, request)


def main() -> None:
    """Answers requests until stdin ends."""
    serve(Verification().answer)
