"""`cluster exec` without nodes: its output, its exit code, and the node's program run here."""

import os

from hypothesis import given
from hypothesis import strategies as st

from bootstrap.ssh.execute import ExitStatus
from cluster.commands.shell import KEPT_BYTES, Collector, LinePrinter


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.binary(max_size=40)), max_size=20))
def test_output_is_printed_in_whole_lines(pieces: list[tuple[str, bytes]]) -> None:
    source, sink = os.pipe()
    printer = LinePrinter(stdout=sink, stderr=sink)
    for node, data in pieces:
        if data:
            printer.take(node, "stdout", data)
    for node in ("a", "b"):
        printer.take(node, "stdout", b"")
    os.close(sink)
    with open(source, "rb") as stream:
        shown = stream.read()
    for node in ("a", "b"):
        mark = f"[{node}] ".encode()
        whole = b"".join(data for name, data in pieces if name == node)
        lines = [line.removeprefix(mark) for line in shown.split(b"\n") if line.startswith(mark)]
        assert lines == (whole.removesuffix(b"\n").split(b"\n") if whole else [])


def test_the_end_of_long_output_is_kept() -> None:
    collector = Collector()
    for _ in range(5):
        collector.take("a", "stdout", b"x" * KEPT_BYTES)
    collector.take("a", "stdout", b"end\xff")
    long, short = (collector.describe(ExitStatus(node=name, exit_code=0)) for name in ("a", "b"))
    text = long["stdout"]
    assert (len(text), text[-4:], long["cut"]) == (KEPT_BYTES, "end\N{REPLACEMENT CHARACTER}", True)
    assert (short["stderr"], short["cut"]) == ("", False)
