"""Ranks and ports in the output of ps-lite in every version of MXNet."""

import re

import pytest

from node.engines import ps_lite
from node.engines.engine import Report
from provision.oracle.tables import WHEELS
from ps_lite_lines import LINES


def test_every_cpu_wheel_of_the_oracle_has_its_lines_here() -> None:
    assert {wheel.requirement for wheel in WHEELS if wheel.cuda is None} == set(LINES)


def verbose(rank: int | None = None, bound: tuple[str, int] | None = None) -> Report:
    """The report of a line that only PS_VERBOSE=1 causes."""
    return Report(rank=rank, bound=bound, is_hidden=True, is_noise=True)


@pytest.mark.parametrize("wheel", LINES)
def test_only_ranks_and_ports_are_parsed(wheel: str) -> None:
    server, worker = ([ps_lite.read(line) for line in lines] for lines in LINES[wheel])
    ports = [re.findall(r"port=(\d+)", lines[0]) for lines in LINES[wheel]]
    assert server == [verbose(bound=("127.0.0.1", int(ports[0][0]))), verbose(rank=0), verbose(), verbose()]
    assert worker == [verbose(bound=("127.0.0.1", int(ports[1][0]))), verbose(rank=1), verbose(), verbose()]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[10:00:00] /opt/mxnet/3rdparty/ps-lite/src/van.cc:9: W[9] is connected to others", verbose(rank=0)),
        ("[10:00:00] ../src/./p3_van.h:12: W[9] is stopping", verbose()),
        ("[10:00:00] src/van.cc:1: Check failed: it is", Report(is_noise=True)),
        ("[10:00:00] src/resender.h:90: Resend it", Report(is_noise=True)),
        ("W[9] is connected to others", None),
        ("[10:00:00] src/caravan.cc:1: W[9] is connected to others", None),
        ("Epoch[0] Batch [20] Speed: 100 samples/sec", None),
    ],
)
def test_a_line_is_recognised_by_the_source_file_on_any_path(line: str, message: Report | None) -> None:
    assert ps_lite.read(line) == message
