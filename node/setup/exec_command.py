"""Runs one command of `cluster exec` on a node, and ends it with all its children when the other side goes away.

stdin has one JSON line, the order {"words": [...]}. The end of stdin means that the command must end. stdout has lines:
    {"out": text}, {"err": text}   a piece of the command's stdout, stderr, with a character for each byte
    {"alive": true}                a sign of life while there is no output
    {"exit": code, "signal": number or null, "left": [pids that could not be ended]}   the last one
The command's orphans become this process's children (PR_SET_CHILD_SUBREAPER), so that all descendants of the command
are found, whatever their session, user or environment. If the command ends on its own, its background processes keep
running, as with ssh.
"""

import glob
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from node.protocol import OUTPUT_ENCODING
from node.setup import process_tree, setup_env

ALIVE_EVERY_S = 5.0
PIPE_GRACE_S = 0.5  # after the command's end, for pipes that background processes hold open
LAST_WORD_S = 5
PENDING_BYTES = 1 << 20
PIECE_BYTES = 1 << 16
LONGEST_PIPE_BYTES = 1 << 20  # /proc/sys/fs/pipe-max-size


def main() -> None:
    """Runs the command of the order on stdin."""
    order = json.loads(sys.stdin.buffer.readline())
    process_tree.adopt_orphans()
    os.set_blocking(1, False)
    deaths = process_tree.watch_children()
    pipe = Pipe()
    words = [word.encode("utf-8", "surrogateescape") for word in order["words"]]
    try:
        home = os.path.expanduser("~")
        child = process_tree.start(words, environment(os.environ), home, stderr=subprocess.PIPE)
    except (OSError, ValueError) as error:  # ValueError: an empty word, or one with a NUL
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        pipe.put_output("err", f"cannot start {order['words'][0]!r}: {reason}\n".encode("utf-8", "replace"))
        code = 126 if isinstance(error, PermissionError) else 127
        finish(pipe, {"exit": code, "signal": None, "left": []})
        return
    status, left = Relay(child, pipe, deaths).run()
    number = status & 0x7F or None
    finish(pipe, {"exit": 128 + number if number else status >> 8, "signal": number, "left": left})


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """The command's variables: those of `base`, with the newest environment of this node and its CUDA libraries."""
    made = setup_env.reach_near(base)
    ready = glob.glob(os.path.expanduser("~/.cluster/env/*/.complete"))
    if ready:
        folder = os.path.dirname(max(ready, key=os.path.getmtime))
        made["PATH"] = f"{folder}/bin:{base.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"
        libraries = sorted(glob.glob(os.path.join(folder, "lib/python3*/site-packages/nvidia/*/lib")))
        if libraries:
            made["LD_LIBRARY_PATH"] = ":".join(libraries + [path for path in [base.get("LD_LIBRARY_PATH")] if path])
    return made


class Pipe:
    """Output for the other side, written only as fast as it is read, so that this process never blocks."""

    def __init__(self) -> None:
        self.pending = bytearray()
        self.broken = False

    def put(self, message: Mapping[str, Any]) -> None:
        """Appends one message."""
        self.pending += json.dumps(message).encode("ascii") + b"\n"

    def put_output(self, stream: str, data: bytes) -> None:
        """Appends a piece of the command's output. stream: "out" or "err"."""
        self.put({stream: data.decode(OUTPUT_ENCODING)})

    def write(self) -> None:
        """Writes as much as the other side accepts now."""
        try:
            del self.pending[: os.write(1, bytes(self.pending[:PIECE_BYTES]))]
        except BlockingIOError:
            pass
        except OSError:  # the other side is gone, even if stdin has not ended
            self.broken = True


class Relay:
    """Passes on the command's output until the command ends; ends the command when the other side is gone."""

    def __init__(self, child: "subprocess.Popen[bytes]", pipe: Pipe, deaths: int) -> None:
        self._deaths = deaths
        self._child = child
        self._pipe = pipe
        assert child.stdout is not None
        assert child.stderr is not None
        self._streams = {child.stdout.fileno(): "out", child.stderr.fileno(): "err"}
        self._left_bytes = dict.fromkeys(self._streams, LONGEST_PIPE_BYTES)
        self._status: int | None = None
        self._ended_at = 0.0
        self._said_at = time.monotonic()

    def run(self) -> tuple[int, list[int]]:
        """Passes on output to the end. Returns the command's wait status, and the pids that could not be ended."""
        while True:
            full = len(self._pipe.pending) >= PENDING_BYTES
            sources = [] if full else list(self._streams)
            wanted = [1] if self._pipe.pending else []
            wait_s = ALIVE_EVERY_S if self._status is None else PIPE_GRACE_S
            ready, writable, _ = select.select([0, self._deaths, *sources], wanted, [], wait_s)
            if (0 in ready and not os.read(0, PIECE_BYTES)) or self._pipe.broken:
                return end_all(self._child.pid, self._status)
            if self._deaths in ready:
                os.read(self._deaths, PIECE_BYTES)
            self._look_at_child()
            for source in ready:
                if source in self._streams:
                    self._take(source)
            self._say(writable)
            if self._status is not None and self._is_over(full or bool(set(ready) & set(sources))):
                return self._status, []

    def _look_at_child(self) -> None:
        if self._status is None:
            self._status = reap(self._child.pid)
            self._ended_at = time.monotonic()

    def _take(self, source: int) -> None:
        data = os.read(source, PIECE_BYTES)
        if data:
            self._pipe.put_output(self._streams[source], data)
        if self._status is not None:
            self._left_bytes[source] -= len(data)
        if not data or self._left_bytes[source] < 0:  # everything that the command itself has written has been read
            del self._streams[source]

    def _say(self, writable: list[int]) -> None:
        if writable:
            self._pipe.write()
            self._said_at = time.monotonic()
        elif not self._pipe.pending and time.monotonic() > self._said_at + ALIVE_EVERY_S / 2:
            self._pipe.put({"alive": True})

    def _is_over(self, busy: bool) -> bool:  # noqa: FBT001
        return not self._streams or (not busy and time.monotonic() >= self._ended_at + PIPE_GRACE_S)


def reap(pid: int) -> int | None:
    """Reaps all children that have ended. Returns the wait status of `pid` if it is among them, else None."""
    status = None
    while True:
        try:
            ended, its_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if ended == 0:
            return status
        if ended == pid:
            status = its_status


def end_all(pid: int, status: int | None) -> tuple[int, list[int]]:
    """Ends all descendants of this process: SIGTERM, then SIGKILL. Returns what `Relay.run` returns."""
    ending = process_tree.Ending(process_tree.find_descendants, process_tree.our_programs_last)
    while True:
        ended = reap(pid)
        status = ended if ended is not None else status
        if not ending.go_on():
            return status or 0, [left for left, _, _ in ending.left]
        time.sleep(process_tree.LOOK_EVERY_S)


def finish(pipe: Pipe, result: Mapping[str, Any]) -> None:
    """Writes the pending output, and the last message."""
    pipe.put(result)
    lifelines = [0]
    while pipe.pending and not pipe.broken:
        ready, writable, _ = select.select(lifelines, [1], [])
        if ready and not os.read(0, PIECE_BYTES):
            lifelines = []
            signal.alarm(LAST_WORD_S)  # this ends the process: the other side may be gone, and never read the rest
        if writable:
            pipe.write()
