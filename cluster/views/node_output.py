"""The output of `cluster exec`: printed line by line, or collected for one JSON array."""

import os
import select
import threading
from collections import defaultdict

from bootstrap.ssh.execute import Stream
from cluster.views.terminal import escape_line, escape_output

LONGEST_LINE_BYTES = 4 << 20
"""A longer line is shown in pieces of this size."""
KEPT_BYTES = 8 << 20
"""Of each stream of each node, for --json: its end."""
PIECE_BYTES = 4096
"""What a pipe takes at once when it takes anything (PIPE_BUF): so no write waits, however slow the reader is."""
LOOK_EVERY_S = 0.2


class LinePrinter:
    """Prints whole lines, prefixed with their node's name, to the stream that they came from.

    On a terminal, control characters other than colours are escaped; elsewhere bytes are printed unchanged.
    """

    def __init__(self, *, stdout: int, stderr: int) -> None:
        self._descriptors: dict[Stream, int] = {"stdout": stdout, "stderr": stderr}
        self._terminals = frozenset(filter(os.isatty, (stdout, stderr)))
        self._rests: defaultdict[tuple[str, Stream], bytes] = defaultdict(bytes)
        self._lock = threading.Lock()
        self._dropped = threading.Event()

    def take(self, node: str, stream: Stream, data: bytes) -> None:
        """Print complete lines, and at a stream's end also an incomplete one. Raises OSError."""
        *lines, rest = (self._rests[node, stream] + data).split(b"\n")
        while len(rest) > LONGEST_LINE_BYTES:
            lines.append(rest[:LONGEST_LINE_BYTES])
            rest = rest[LONGEST_LINE_BYTES:]
        if rest and not data:
            lines.append(rest)
            rest = b""
        self._rests[node, stream] = rest
        if lines:
            descriptor = self._descriptors[stream]
            if descriptor in self._terminals:
                lines = [_escape(line) for line in lines]
            prefix = b"[%s] " % escape_line(node).encode()
            with self._lock:
                self._write(descriptor, b"".join(b"%s%s\n" % (prefix, line) for line in lines))

    def drop(self) -> None:
        """Print nothing from now on."""
        self._dropped.set()

    def _write(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._dropped.is_set():
            if select.select([], [descriptor], [], LOOK_EVERY_S)[1]:
                view = view[os.write(descriptor, view[:PIECE_BYTES]) :]


def _escape(line: bytes) -> bytes:
    return escape_output(line.decode("utf-8", "surrogateescape")).encode()


class Collector:
    """Collects the end of every stream."""

    def __init__(self) -> None:
        self._kept: defaultdict[tuple[str, Stream], bytearray] = defaultdict(bytearray)
        self._cut: set[tuple[str, Stream]] = set()

    def take(self, node: str, stream: Stream, data: bytes) -> None:
        """Keep a piece."""
        kept = self._kept[node, stream]
        kept += data
        if len(kept) > 2 * KEPT_BYTES:
            self._cut_off(node, stream)

    def drop(self) -> None:
        """Nothing to do: nothing is printed before the end."""

    def text(self, node: str, stream: Stream) -> str:
        """What was printed, or its end; bytes that are no UTF-8 are replaced."""
        if len(self._kept[node, stream]) > KEPT_BYTES:
            self._cut_off(node, stream)
        return self._kept[node, stream].decode("utf-8", "replace")

    def is_cut(self, node: str) -> bool:
        """Whether there was more than is kept; ask after `text`."""
        return any(name == node for name, _ in self._cut)

    def _cut_off(self, node: str, stream: Stream) -> None:
        del self._kept[node, stream][:-KEPT_BYTES]
        self._cut.add((node, stream))
