"""A job of two processes: reads.py FOLDER ROUNDS. One writes and closes a file, then the other opens and reads it.

They take turns, and tell each other over a socket when a file is closed. Two of three files replace an earlier one.
Prints `correct N of M` on each.
"""

import hashlib
import os
import socket
import sys
import time


def message(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def content(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).hexdigest().encode() * (1 + number % 50)


def connect(rank: int) -> socket.socket:
    # Not MASTER_PORT itself, because the agent tests whether that can be reached.
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1)
    if rank == 0:
        with socket.create_server(place) as listener:
            return listener.accept()[0]
    while True:
        try:
            return socket.create_connection(place)
        except ConnectionRefusedError:
            time.sleep(0.1)


def read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        return repr(error).encode()


def main() -> None:
    folder, rounds, rank = sys.argv[1], int(sys.argv[2]), int(os.environ["RANK"])
    other = connect(rank)
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    correct = 0
    for number in range(rounds):
        path = os.path.join(folder, "same" if number % 3 else f"file-{number}")
        if number % 2 == rank:
            with open(path, "wb") as stream:
                stream.write(content(number))
            other.sendall(b"w")
            assert other.recv(1) == b"r"
            continue
        assert other.recv(1) == b"w"
        found = read(path)
        correct += found == content(number)
        if found != content(number):
            message(f"wrong: {path} {found[:60]!r}")
        other.sendall(b"r")
    message(f"correct {correct} of {rounds // 2}")


main()
