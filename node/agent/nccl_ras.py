"""Asks NCCL's RAS service about a job: which ranks are missing, and which have launched fewer collectives.

NCCL 2.24 and later listen on a port of each host, in a thread of their own, which answers for the whole job, also while
the program hangs: docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html. The requests are those of
NCCL's `ncclras --verbose`.
"""

import asyncio
import socket
from collections.abc import Collection

PORT = 28028
TIMEOUT_S = 1.0
GATHERS_S = 2  # NCCL's default is 5; processes that do not answer in time are missing
MOST_BYTES = 1 << 16
MOST_TROUBLES, LONGEST = 6, 400


async def ask(pids: Collection[int], port: int = PORT) -> tuple[str, ...]:
    """What NCCL finds wrong, if one of these processes listens on the port; else (): another job's, or no NCCL."""
    return await asyncio.to_thread(_ask, pids, port) if pids else ()


def _ask(pids: Collection[int], port: int) -> tuple[str, ...]:
    import psutil  # noqa: PLC0415 - it takes 10 ms, and most jobs do not hang

    listening = (one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN)
    if not any(one.pid in pids and one.laddr and one.laddr.port == port for one in listening):
        return ()
    try:
        return find_troubles(_read_status(port))
    except OSError as error:  # such as of a process that is stopped
        return (f"its RAS service on port {port} does not answer: {error}",)


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
