"""`cluster exec`: runs a command on all nodes in parallel."""

import os
import select
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import click

from bootstrap.ssh.execute import ExitStatus, Sink, Stream, choose_exit_code, execute
from bootstrap.ssh.host import Host
from cluster.app import App, pass_app
from cluster.completion import NODE
from cluster.nodes.source import Nodes
from cluster.session import describe_and_warn, source_of
from cluster.views.terminal import escape_line, escape_output
from foundation.errors import ClusterError, UsageError

LONGEST_LINE_BYTES = 4 << 20  # a longer line is printed in pieces of this size
KEPT_BYTES = 8 << 20  # for --json: the size of the end of each stream of each node that is kept
PIECE_BYTES = 4096  # PIPE_BUF: a pipe that accepts any data accepts this much, so no write waits for a slow reader
CHECK_EVERY_S = 0.2
SIGNALS = {number.value: number.name for number in signal.Signals}


@click.command("exec", context_settings={"allow_interspersed_args": False})  # python -c is not our -c
@click.option(
    "--node",
    "names",
    multiple=True,
    metavar="NAME",
    type=NODE,
    help="Run only on this node; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON array at the end.")
@click.argument("words", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@pass_app
def exec_(app: App, *, names: tuple[str, ...], as_json: bool, words: tuple[str, ...]) -> int:
    """Run a command on all nodes in parallel.

    COMMAND is run word for word; a single word with spaces is a line for sh. Each line of output is prefixed with the
    node's name. The exit code is that of the first process that failed, 1 if a node cannot be reached, otherwise 0.
    Ctrl-C ends the command on all nodes.
    """
    if not words:
        raise UsageError("there is no command to run", hint="cluster exec -- COMMAND")
    if len(words) == 1 and len(words[0].split()) > 1:
        words = ("sh", "-c", words[0])
    app.enter_cloud()
    nodes = describe_and_warn(app)
    if as_json:
        collector = Collector()
        statuses = _run(app, nodes, names, words, collector)
        app.print_json([collector.describe(status) for status in statuses])
    else:
        printer = LinePrinter(stdout=sys.stdout.fileno(), stderr=sys.stderr.fileno())
        statuses = _run(app, nodes, names, words, printer)
    failures = render_failures(statuses)
    if failures:
        app.message(failures, style="red")
    return choose_exit_code(statuses)


def _run(app: App, nodes: Nodes, names: Sequence[str], words: Sequence[str], sink: Sink) -> tuple[ExitStatus, ...]:
    chosen = nodes.choose(names)
    hosts: list[Host] = []
    statuses: dict[str, ExitStatus] = {}
    for name in chosen:
        try:
            hosts.append(nodes.find_host(name))
        except ClusterError as error:
            statuses[name] = ExitStatus(node=name, error=error)
    with source_of(app).open_connections() as connections:
        done = execute(hosts, words, open_connection=connections.get, sink=sink)
    statuses |= {status.node: status for status in done}
    return tuple(statuses[name] for name in chosen)


def render_failures(statuses: Sequence[ExitStatus]) -> str:
    """Renders every node on which the command failed or could not be run; empty without failures. Pure."""
    failed = [status for status in statuses if status.exit_code != 0]
    if not failed:
        return ""
    lines = [f"error: the command failed on {len(failed)} of {len(statuses)} nodes:"]
    hints: dict[str, None] = {}
    for status in failed:
        if status.error is not None:
            lines.append(f"  {status.error.message}")
            hints |= {status.error.hint: None} if status.error.hint else {}
        elif status.signal is not None:
            name = SIGNALS.get(status.signal, f"signal {status.signal}")
            lines.append(f"  {status.node}: ended by {name} (exit code {status.exit_code})")
        else:
            lines.append(f"  {status.node}: exit code {status.exit_code}")
    return "\n".join([*lines, *(f"  try: {hint}" for hint in hints)])


class LinePrinter:
    """Prints whole lines, prefixed with their node's name, to the same stream on which the node printed them.

    On a terminal, control characters other than colours are escaped; elsewhere bytes are printed unchanged.
    """

    def __init__(self, *, stdout: int, stderr: int) -> None:
        self._descriptors: dict[Stream, int] = {"stdout": stdout, "stderr": stderr}
        self._terminals = frozenset(filter(os.isatty, (stdout, stderr)))
        self._rests: defaultdict[tuple[str, Stream], bytes] = defaultdict(bytes)
        self._lock = threading.Lock()
        self._dropped = threading.Event()

    def take(self, node: str, stream: Stream, data: bytes) -> None:
        """Prints complete lines, and an incomplete one at the end of the stream. Raises OSError.

        data: empty at the end of the stream.
        """
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
                lines = [escape_output(line.decode("utf-8", "surrogateescape")).encode() for line in lines]
            prefix = b"[%s] " % escape_line(node).encode()
            with self._lock:
                self._write(descriptor, b"".join(b"%s%s\n" % (prefix, line) for line in lines))

    def drop(self) -> None:
        """Discards all further output."""
        self._dropped.set()

    def _write(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._dropped.is_set():
            if select.select([], [descriptor], [], CHECK_EVERY_S)[1]:
                view = view[os.write(descriptor, view[:PIECE_BYTES]) :]


class Collector:
    """Collects the end of every stream."""

    def __init__(self) -> None:
        self._kept: defaultdict[tuple[str, Stream], bytearray] = defaultdict(bytearray)
        self._cut: set[str] = set()  # names of nodes

    def take(self, node: str, stream: Stream, data: bytes) -> None:
        """Adds a piece of a stream, and discards its beginning if it is too long."""
        kept = self._kept[node, stream]
        kept += data
        if len(kept) > 2 * KEPT_BYTES:
            del kept[:-KEPT_BYTES]
            self._cut.add(node)

    def drop(self) -> None:
        """Does nothing: all output is printed at the end."""

    def describe(self, status: ExitStatus) -> dict[str, Any]:
        """Returns one node's result, for --json. Bytes that are not UTF-8 are replaced."""
        kept = {stream: self._kept[status.node, stream] for stream in ("stdout", "stderr")}
        is_cut = status.node in self._cut or any(len(data) > KEPT_BYTES for data in kept.values())
        return {
            "node": status.node,
            "exit_code": status.exit_code,
            **{stream: data[-KEPT_BYTES:].decode("utf-8", "replace") for stream, data in kept.items()},
            "cut": is_cut,
            "error": status.error.message if status.error else None,
        }
