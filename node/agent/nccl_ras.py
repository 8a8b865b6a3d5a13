"""Asks NCCL's RAS service about a job: which ranks are missing, and which have launched fewer collectives.

NCCL 2.24 and later listen on a port of each host, in a thread of their own, which answers for the whole job, also while
the program hangs: docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html. The requests are those of
NCCL's `ncclras --verbose`.
"""

import asyncio
import socket
from collections.abc import Collection

from node.agent.traffic import PIDS
from node.children import run

PORT = 28028
LISTENERS = ("ss", "--no-header", "--tcp", "--listening", "--numeric", "--processes", "sport")
TIMEOUT_S = 1.0
GATHERS_S = 2  # NCCL's default is 5; processes that do not answer in time are missing
TRIES = 3  # the kernel chooses one of the host's processes, which may be stopped
MOST_BYTES = 1 << 16
MOST_TROUBLES, LONGEST = 6, 400


async def ask(pids: Collection[int], port: int = PORT) -> tuple[str, ...]:
    """What NCCL finds wrong, if one of these processes listens on the port; else ()."""
    if not pids:
        return ()
    try:
        listeners = await run([*LISTENERS, f"= :{port}"], TIMEOUT_S)
    except OSError:  # no `ss`
        return ()
    if not any(int(pid) in pids for pid in PIDS.findall(listeners.stdout.decode("utf-8", "replace"))):
        return ()  # another job's, or no NCCL
    return await asyncio.to_thread(_find_troubles_at, port)


def _find_troubles_at(port: int) -> tuple[str, ...]:
    reason = ""
    for _ in range(TRIES):
        try:
            return find_troubles(_read_status(port))
        except OSError as error:
            reason = str(error)
    return (f"its RAS service on port {port} does not answer: {reason}",)


def _read_status(port: int) -> str:
    """Returns what `ncclras --verbose` prints. Raises OSError."""
    with socket.create_connection(("localhost", port), TIMEOUT_S) as connection, connection.makefile("rwb") as stream:
        for request, answer in (("CLIENT PROTOCOL 2", b"SERVER PROTOCOL "), (f"TIMEOUT {GATHERS_S}", b"OK")):
            stream.write(f"{request}\n".encode())
            stream.flush()
            if not (line := stream.readline(LONGEST)).startswith(answer):
                raise ConnectionError(f"{line!r} is no answer to {request}")
        connection.settimeout(2 * GATHERS_S + TIMEOUT_S)
        stream.write(b"VERBOSE STATUS\n")
        stream.flush()
        return stream.read(MOST_BYTES).decode("utf-8", "replace")


def find_troubles(text: str) -> tuple[str, ...]:
    """The paragraphs below "Errors" and "Warnings" in what `ncclras` prints, each as one line. Pure."""
    _, _, found = text.partition("\nErrors\n======\n")
    troubles = []
    for paragraph in found.split("\n\n"):
        lines = ["".join(filter(str.isprintable, line)).strip() for line in paragraph.splitlines() if line[:1] == " "]
        if lines:
            troubles.append("; ".join(lines)[:LONGEST])
    return tuple(troubles[:MOST_TROUBLES])
