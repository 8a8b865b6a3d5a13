"""Runs other programs from an asyncio program, which learns of their ends from SIGCHLD.

asyncio's own subprocesses do not fit beside a program that adopts orphans: it reaps all children, and would take their
exit codes from the threads in which asyncio waits for them.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, NamedTuple

from node.setup import process_tree

KILLED_S = 1.0  # from SIGKILL to the end of a program and of its output


class Ended(NamedTuple):
    """How a program has ended. code: negative: the signal; None: it did not end in time, and was killed."""

    code: int | None
    stdout: bytes
    stderr: bytes


class _Reaper:
    """Reaps the children of this process."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[subprocess.Popen[bytes], asyncio.Future[int]]] = {}
        self.adopts_orphans = False

    def reap(self) -> None:
        """Reaps the children that have ended and, if this program adopts them, orphans."""
        while True:
            for pid, (child, ended) in list(self.known.items()):
                if child.poll() is not None:
                    del self.known[pid]
                    if not ended.done():
                        ended.set_result(child.returncode)
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) if self.adopts_orphans else None
            except ChildProcessError:
                return
            if found is None:
                return
            if found.si_pid not in self.known:
                os.waitpid(found.si_pid, 0)


_reaper = _Reaper()


def adopt_orphans() -> None:
    """Keeps all descendants of this process below it, and reaps them."""
    _reaper.adopts_orphans = True
    process_tree.adopt_orphans()
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, _reaper.reap)


def watch(child: "subprocess.Popen[bytes]") -> "asyncio.Future[int]":
    """Returns the exit code of a child at its end; negative: the signal. Call it at once, in the loop's thread."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    _reaper.known[child.pid] = child, ended
    loop.add_signal_handler(signal.SIGCHLD, _reaper.reap)
    loop.call_soon(_reaper.reap)  # it may have ended before there was a handler
    return ended


async def run(words: Sequence[str], timeout_s: float | None, *, given: bytes = b"", **options: Any) -> Ended:
    """Runs a command, for a limited time, if any. given: its input, less than a pipe holds. options: those of Popen.

    Raises OSError.
    """
    child = subprocess.Popen(  # noqa: ASYNC220 - it waits only for exec
        words,
        stdin=subprocess.PIPE if given else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        **options,
    )
    ended = watch(child)
    if child.stdin is not None:
        try:
            child.stdin.write(given)
            child.stdin.close()
        except OSError:
            pass  # its end, or its answer, says why
    outputs = [asyncio.ensure_future(_read(stream)) for stream in (child.stdout, child.stderr)]
    parts: list[asyncio.Future[Any]] = [ended, *outputs]
    try:
        _, late = await asyncio.wait(parts, timeout=timeout_s)
        if late:
            _kill(child)
            await asyncio.wait(parts, timeout=KILLED_S)
    finally:
        _kill(child)
        for part in parts:
            part.cancel()
    out, err = (b"" if one.cancelled() or not one.done() else one.result() for one in outputs)
    return Ended(None if late else ended.result(), out, err)


def _kill(child: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(PermissionError):  # sudo has become root
        child.kill()


async def _read(stream: IO[bytes] | None) -> bytes:
    if stream is None:
        return b""
    reader, transport = await open_output(stream)
    try:
        return await reader.read()
    finally:
        transport.close()


async def open_output(stream: IO[bytes]) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    """Opens the output of a child for reading."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stream)
    return reader, transport


async def end_processes(
    find: Callable[[], Sequence[process_tree.Process]],
    spare: Callable[[Sequence[process_tree.Process]], Iterable[process_tree.Process]] = lambda _: (),
) -> list[process_tree.Process]:
    """Ends processes: SIGTERM, later SIGKILL, and later gives up. Returns those that do not end.

    find: returns the current processes. spare(found): returns those that are not signalled yet, only waited for.
    """
    signaled: set[tuple[process_tree.Process, int]] = set()
    # The times after the first signals, not before: a busy machine may delay this process.
    signaled_at: float | None = None
    killed_at: float | None = None
    while True:
        found = find()
        spared = set(spare(found))
        left = [entry for entry in found if entry not in spared]
        if not found or (killed_at is not None and time.monotonic() >= killed_at + process_tree.TERM_GRACE_S):
            return left
        is_late = signaled_at is not None and time.monotonic() >= signaled_at + process_tree.TERM_GRACE_S
        number = signal.SIGKILL if is_late else signal.SIGTERM
        new = [entry for entry in left if (entry, number) not in signaled]
        process_tree.signal_all([pid for pid, _, _ in new], number)
        signaled.update((entry, number) for entry in new)
        signaled_at = signaled_at or time.monotonic()
        killed_at = killed_at or (time.monotonic() if is_late else None)
        await asyncio.sleep(process_tree.CHECK_EVERY_S)
