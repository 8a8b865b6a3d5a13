"""Measures the network from this node to others, for `cluster bench network`.

Reads one order from stdin, a line of JSON. The program ends after "limit_s" seconds in any case.
    {"do": "receive", "address", "secret"}     listens at the address, prints {"listening": port}, and receives until
                                               its output is closed
    {"do": "send", "secret", "seconds", "streams", "pings",
     "peers": [{"name", "ip", "port"}]}        for one peer after another: {"to", "bytes", "seconds", "round_trips_s"}
                                               or {"to", "error"}; between them {"alive": true}
The receiver counts the bytes, and measures the time from the first byte to the last. Round trips send 64 bytes back and
forth on a separate connection.
"""

from __future__ import annotations

import hmac
import json
import os
import random
import select
import socket
import struct
import sys
import threading
import time
from typing import Any

from foundation.thread_pool import Check, map_in_threads

PORTS = (10000, 49999)  # ps-lite's, which training needs to be open
TRIES = 50
CONNECT_TIMEOUT_S = 5.0
TIMEOUT_S = 15.0  # the longest time without a byte
ALIVE_EVERY_S = 1.0
SECRET_BYTES = 16
CHUNK_BYTES = 1 << 20
PING_BYTES = 64
UNTIMED_PINGS = 10  # warm-up
COUNT = struct.Struct("!Qd")  # bytes, seconds


def main() -> None:
    """Carries out the order."""
    order = json.loads(sys.stdin.readline())
    secret = bytes.fromhex(order["secret"])
    threading.Thread(target=_show_life, args=(time.time() + order["limit_s"],), daemon=True).start()
    if order["do"] == "receive":
        receive(order["address"], secret)
    else:
        for peer in order["peers"]:
            say({"to": peer["name"], **measure(order, peer, secret)})


_writing = threading.Lock()


def say(message: dict[str, Any]) -> None:
    """Prints a message as one line. Ends the program if its output is closed."""
    with _writing:
        try:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()
        except OSError:
            os._exit(0)


def _show_life(until: float) -> None:
    reader = select.poll()
    reader.register(sys.stdout.fileno(), 0)  # reports a closed pipe in any case
    while time.time() < until:
        if reader.poll(ALIVE_EVERY_S * 1000):
            os._exit(0)
        say({"alive": True})
    os._exit(1)


# -- receiver ----------------------------------------------------------------------------------------------------------


def receive(address: str, secret: bytes) -> None:
    """Serves all connections until this process ends."""
    listener = listen(address)
    say({"listening": listener.getsockname()[1]})
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=take, args=(connection, secret), daemon=True).start()


def listen(address: str) -> socket.socket:
    """Returns a socket that listens on a free port of PORTS. Raises OSError after TRIES ports that are in use."""
    tries_left = TRIES
    while True:
        try:
            port = random.randint(*PORTS)  # noqa: S311 - need not be unpredictable
            return socket.create_server((address, port), backlog=64)
        except OSError:
            tries_left -= 1
            if not tries_left:
                raise


def take(connection: socket.socket, secret: bytes) -> None:
    """Serves a connection, which starts with the secret and its purpose: "s" to count bytes, "p" to send them back."""
    try:
        connection.settimeout(TIMEOUT_S)
        first = read_exactly(connection, SECRET_BYTES + 1)
        if not hmac.compare_digest(first[:SECRET_BYTES], secret):
            return
        if first[SECRET_BYTES:] == b"s":
            connection.sendall(COUNT.pack(*count(connection)))
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            connection.sendall(read_exactly(connection, PING_BYTES))
    except (OSError, EOFError):
        return  # the sender reports the error
    finally:
        connection.close()


def count(connection: socket.socket) -> tuple[int, float]:
    """Receives until the sender shuts down its side. Returns (bytes, seconds)."""
    buffer = bytearray(CHUNK_BYTES)
    total = connection.recv_into(buffer)
    began = ended = time.perf_counter()
    got = total
    while got:
        got = connection.recv_into(buffer)
        total += got
        ended = time.perf_counter()
    return total, ended - began


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """Reads `size` bytes. Raises EOFError if the other side closes the connection, and OSError."""
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError("the other side closed the connection")
        data += more
    return data


# -- sender ------------------------------------------------------------------------------------------------------------


def measure(order: dict[str, Any], peer: dict[str, Any], secret: bytes) -> dict[str, Any]:
    """Measures the network to one peer. Returns the result without the peer's name."""
    try:
        trips = time_round_trips(peer, secret, order["pings"])
        total, seconds = send(peer, secret, order["seconds"], order["streams"])
    except TimeoutError:
        return {"error": "timed out"}
    except (OSError, EOFError) as error:
        return {"error": str(getattr(error, "strerror", None) or error).lower()}
    return {"bytes": total, "seconds": seconds, "round_trips_s": trips}


def connect(peer: dict[str, Any], secret: bytes, what: bytes) -> socket.socket:
    """Connects to a peer's receiver. what: the purpose of the connection (see `take`). Raises OSError."""
    connection = socket.create_connection((peer["ip"], peer["port"]), timeout=CONNECT_TIMEOUT_S)
    connection.settimeout(TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(secret + what)
    return connection


def time_round_trips(peer: dict[str, Any], secret: bytes, pings: int) -> list[float]:
    """Returns the duration of each of `pings` round trips, in seconds."""
    trips = []
    with connect(peer, secret, b"p") as connection:
        for _ in range(UNTIMED_PINGS + pings):
            began = time.perf_counter()
            connection.sendall(b"." * PING_BYTES)
            read_exactly(connection, PING_BYTES)
            trips.append(time.perf_counter() - began)
    return trips[UNTIMED_PINGS:]


def send(peer: dict[str, Any], secret: bytes, seconds: float, streams: int) -> tuple[int, float]:
    """Sends for `seconds` over `streams` connections at once.

    Returns the bytes that the peer received, and the seconds of the slowest connection.
    """
    connections = [connect(peer, secret, b"s") for _ in range(streams)]

    def work(connection: socket.socket, _: Check) -> tuple[int, float]:
        with connection:
            return _send_on(connection, seconds)

    results = map_in_threads(work, connections, threads=streams)
    return sum(total for total, _ in results), max(took for _, took in results)


def _send_on(connection: socket.socket, seconds: float) -> tuple[int, float]:
    data = memoryview(bytes(CHUNK_BYTES))
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    total, took = COUNT.unpack(read_exactly(connection, COUNT.size))
    return total, took
