"""Checks one node for `cluster verify`: its disk, the ports of its peers, and everything else with probes.

It arrives over stdin, followed by an order, and writes no files. It receives JSON lines:

    {"name": ..., "address": ..., "secret": ..., "ranges": [[first, last], ...], "loader": ..., "python": ...,
     "setup": digest or null, "probes": [{"name": ..., "modules": ..., "order": ..., "timeout_s": ...}, ...]}
    {"peers": [[name, address, [port, ...]], ...]}
    {"together": a probe that all nodes run at the same time, after the others}

and sends:

    {"listening": [port, ...], "refused": why not or null, "free": a free port or null,
     "disk": [[path, device, free bytes], ...]}
    {"ports": [[peer, port, error or null], ...]}
    {"probe": name, "result": {"exit_code": ..., "stdout": ..., "stderr": ...}}, in the order of the probes
    {"ended": "ports", "probes" or "together", "error": a traceback or null}, the last message of each
    {"alive": true}                                every two seconds

It listens for its peers until its stdin ends, and sends them its name and the secret of this verification.
When stdin ends, it ends, and so do its probes. Probes may hang, abort or crash the interpreter, so each has its own
process.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from node.setup import setup_env
from node.setup.messages import stay_alive, tell

KEPT_BYTES = 1 << 16  # of a probe's output
TIMEOUT_S = 5.0  # of a peer
TRIES = 20
MAX_PARALLEL = 256
FREE_RANGE = (20000, 29999)  # below the ports that Linux assigns to clients
_running: set[subprocess.Popen[bytes]] = set()  # the probes' processes
_running_lock = threading.Lock()


def look_at_disk() -> list[tuple[str, int, int]]:
    """[path, device, free bytes for ordinary users] of the home folder and of /tmp."""
    paths = (os.path.expanduser("~"), "/tmp")  # noqa: S108 - the folder that programs use
    return [(path, os.stat(path).st_dev, shutil.disk_usage(path).free) for path in paths]


def begin(order: Mapping[str, Any]) -> None:
    """Listens, looks at the disk, and starts the probes."""
    ports: list[int] = []
    refused = None
    for first, last in order["ranges"]:
        try:
            listener = listen(order["address"], first, last)
        except OSError as error:
            refused = f"{order['address']} port {first} to {last}: {error.strerror or error}"
            break
        serve(listener, greeting(order["name"], order["secret"]))
        ports.append(listener.getsockname()[1])
    tell({"listening": ports, "refused": refused, "free": find_free(order["address"]), "disk": look_at_disk()})
    in_background("probes", run_probes, order)


def run_probes(order: Mapping[str, Any]) -> None:
    """Runs the probes one after the other: two MXNets at the same time would compete for the cores."""
    for probe in order["probes"]:
        run_one(order, probe)


def run_one(order: Mapping[str, Any], probe: Mapping[str, Any]) -> None:
    """Runs a probe, and sends its result."""
    env = probe_environment(order["python"], order["setup"])
    command = [order["python"], "-c", order["loader"]]
    result = run_probe(command, [probe["modules"], probe["order"]], env, probe["timeout_s"])
    tell({"probe": probe["name"], "result": result})


def connect_to_peers(peers: Iterable[tuple[str, str, Sequence[int]]], secret: str) -> None:
    """Tries every port of every peer."""
    targets = [(name, address, port) for name, address, ports in peers for port in ports]
    tell({"ports": connect_all(targets, secret)})


def in_background(name: str, work: Callable[..., None], *args: Any) -> None:
    """Does `work` in a thread, and always reports its end, with the traceback of an error."""

    def follow() -> None:
        try:
            work(*args)
        finally:
            tell({"ended": name, "error": traceback.format_exc() if sys.exc_info()[0] else None})

    threading.Thread(target=follow, daemon=True).start()


# -- probes ------------------------------------------------------------------------------------------------------------


def probe_environment(python: str, setup: str | None) -> dict[str, str]:
    """A probe's environment variables; setup: the digest of the user's set-up commands, or None."""
    # Otherwise the framework would use all cores for six numbers.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    env["PATH"] = f"{os.path.dirname(python)}:/usr/local/bin:/usr/bin:/bin"
    if setup is None:
        return env
    cluster_dir = os.path.join(os.path.expanduser("~"), ".cluster")
    return setup_env.merge(env, setup_env.read(cluster_dir, setup))


def run_probe(command: Sequence[str], lines: Iterable[Any], env: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
    """Runs a command with a list of values as JSON lines on stdin. Returns its result as a dict.

    exit_code: None if it was killed after timeout_s seconds, below 0 if a signal ended it.
    """
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    with _running_lock:
        _running.add(process)
    try:
        given = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        stdout, stderr = process.communicate(given, timeout=timeout_s)
        exit_code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        _kill(process)
        stdout, stderr = process.communicate()
        exit_code = None
    finally:
        with _running_lock:
            _running.discard(process)
    return {"exit_code": exit_code, "stdout": _tail(stdout), "stderr": _tail(stderr)}


def kill_probes() -> None:
    """Kills every probe that still runs."""
    with _running_lock:
        for process in _running:
            _kill(process)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _tail(data: bytes) -> str:
    return data[-KEPT_BYTES:].decode("utf-8", "replace")


# -- ports -------------------------------------------------------------------------------------------------------------


def listen(address: str, first: int, last: int) -> socket.socket:
    """Listens on a random free port from first to last. Returns the socket. Raises OSError after TRIES failures."""
    for left in reversed(range(TRIES)):
        port = random.randint(first, last)  # noqa: S311 - no secret
        try:
            return socket.create_server((address, port), backlog=256)
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


def greeting(name: str, secret: str) -> bytes:
    """What a node sends to each of its peers."""
    return f"{name} {secret}".encode()


def serve(listener: socket.socket, data: bytes) -> None:
    """Sends data to every client, in a thread, until the listener is closed."""

    def accept() -> None:
        while listener.fileno() != -1:
            with suppress(OSError):  # the client reports the error
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(data)

    threading.Thread(target=accept, daemon=True).start()


def connect_all(targets: Iterable[tuple[str, str, int]], secret: str) -> list[tuple[str, int, str | None]]:
    """Connects to (name, address, port) targets in parallel. Returns a list of (name, port, error or None)."""

    def connect(target: tuple[str, str, int]) -> tuple[str, int, str | None]:
        name, address, port = target
        return name, port, try_to_connect(name, address, port, secret)

    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        return list(pool.map(connect, targets))


def try_to_connect(name: str, address: str, port: int, secret: str) -> str | None:
    """Connects once, and checks which node answers. Returns the error, or None."""
    wanted = greeting(name, secret)
    try:
        connection = socket.create_connection((address, port), timeout=TIMEOUT_S)
    except TimeoutError:
        return "timed out"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    try:
        with connection, connection.makefile("rb") as stream:
            said = stream.read(len(wanted))
    except OSError:
        return "no answer"
    return None if said == wanted else "wrong answer"


def main() -> None:
    """Answers until stdin ends."""
    stay_alive()
    secret = ""
    order: dict[str, Any] = {}
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "peers" in message:
            in_background("ports", connect_to_peers, message["peers"], secret)
        elif "together" in message:
            in_background("together", run_one, order, message["together"])
        else:
            secret, order = message["secret"], message
            begin(order)
    kill_probes()
    sys.stderr.flush()
    # Does not wait for threads, which may hold stdout's lock or a connection.
    os._exit(0)
