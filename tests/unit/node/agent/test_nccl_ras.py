"""What NCCL's RAS service says. Not run with NCCL: a server here answers as its source and documentation show."""

import asyncio
import os
import socketserver
import threading
from collections.abc import Iterator

import pytest

from node.agent.nccl_ras import ask, find_troubles

SUMMARY = """\
NCCL version 2.28.9+cuda12.9 compiled with CUDA 12.9
Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
HEALTHY = "    0    8    4    1    4    32   RUNNING    OK\n\nErrors\n======\n\nWarnings\n========\n\n"
# From the NCCL user guide: "Reliability, Availability and Serviceability".
MISMATCH = """\
    0         1         4         8        32        32   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  31 ranks have launched up to operation 6650
  Rank 5 has launched up to operation 6649 -- GPU 5 managed by process 483077 on node 172.16.64.210

"""
RANK_5 = (
    "Communicator ranks have different AllReduce operation counts; 31 ranks have launched up to operation 6650; "
    "Rank 5 has launched up to operation 6649 -- GPU 5 managed by process 483077 on node 172.16.64.210"
)


def test_troubles_are_limited() -> None:
    text = f"\nErrors\n======\n\nX\n  \x1b]0;{'y' * 9999}\n\n" + 99 * "X\n  z\n\n"
    assert find_troubles(text) == ("]0;" + 397 * "y", *5 * ("z",))


class Ras(socketserver.StreamRequestHandler):
    is_silent = False  # as a process that is stopped
    status = SUMMARY + MISMATCH

    def handle(self) -> None:
        if Ras.is_silent:
            self.rfile.read()
            return
        while line := self.rfile.readline():
            if line.startswith(b"CLIENT PROTOCOL "):
                self.wfile.write(b"SERVER PROTOCOL 2\n")
            elif line.startswith(b"TIMEOUT "):
                self.wfile.write(b"OK\n")
            elif line == b"VERBOSE STATUS\n":
                self.wfile.write(Ras.status.encode())
                return
            else:
                self.wfile.write(b"ERROR: Unknown command\n")


@pytest.fixture
def port() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Ras) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize(("status", "troubles"), [(HEALTHY, ()), (MISMATCH, (RANK_5,))])
def test_a_process_of_the_job_is_asked(
    monkeypatch: pytest.MonkeyPatch, port: int, status: str, troubles: tuple[str, ...]
) -> None:
    monkeypatch.setattr(Ras, "status", SUMMARY + status)
    assert asyncio.run(ask({os.getpid()}, port)) == troubles


def test_another_jobs_service_is_not_asked(port: int) -> None:
    assert asyncio.run(ask({1}, port)) == ()


def test_one_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setattr(Ras, "is_silent", True)
    (message,) = asyncio.run(ask({os.getpid()}, port))
    assert message == f"its RAS service on port {port} does not answer: timed out"
