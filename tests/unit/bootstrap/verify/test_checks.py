"""The checks of `cluster verify`, derived from the nodes' reports."""

import json
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from bootstrap.environment.framework import Torch
from bootstrap.verify.checks import (
    Check,
    Offset,
    PortTest,
    Probe,
    ProbeResult,
    check_all_reduce,
    check_clocks,
    check_compute,
    check_disk,
    check_ports,
    compute_probes,
    joint_probes,
)
from cluster.nodes.verification import render_checks, render_troubles
from local_nodes import local_node

V100 = ("7.0", "Tesla V100")

# Ports.


def attempts(*blocked: tuple[int, int], nodes: int = 4, error: str = "timed out") -> list[PortTest]:
    """The connections of each node to both ports of each other node. Those from a to b fail for (a, b) in `blocked`."""
    return [
        PortTest(source=f"node-{a}", target=f"node-{b}", port=port, error=error if (a, b) in blocked else None)
        for a in range(nodes)
        for b in range(nodes)
        if a != b
        for port in (9100 + b, 20000 + b)
    ]


def ports(tried: list[PortTest], nodes: int = 4) -> list[tuple[str, str, str]]:
    listening = {f"node-{n}": (9100 + n, 20000 + n) for n in range(nodes)}
    return [
        (check.node, check.subject, check.result) for check in check_ports(listening, {}, tried) if check.status != "ok"
    ]


@pytest.mark.parametrize(
    ("blocked", "expected"),
    [
        ([], []),
        ([(1, 3)], [("node-3", "from node-1")]),
        ([(a, 3) for a in range(3)], [("node-3", "from every other node")]),
        ([(2, b) for b in (0, 1, 3)], [(f"node-{b}", "from node-2") for b in (0, 1, 3)]),
    ],
)
def test_each_node_names_those_that_do_not_reach_it(
    blocked: list[tuple[int, int]], expected: list[tuple[str, str]]
) -> None:
    found = ports(attempts(*blocked))
    assert [(node, subject) for node, subject, _ in found] == expected
    assert {message for node, _, message in found if node == "node-3"} <= {"timed out"}


def test_a_single_port_is_named() -> None:
    tried = [PortTest(source="node-0", target="node-1", port=9093, error="refused")]
    tried += [PortTest(source="node-0", target="node-1", port=20000, error=None)]
    failed, *_ = check_ports({"node-1": (9093, 20000)}, {}, tried)
    assert failed.result == "port 9093: refused"
    assert "security group" in (failed.cause or "")
    assert (failed.hint or "").startswith("cluster up")


def test_a_single_node_and_one_that_cannot_listen() -> None:
    (alone,) = check_ports({"node-0": (9100, 20000)}, {}, [])
    assert (alone.status, alone.result) == ("ok", "free; there is no other node")
    refused, other = check_ports(
        {"node-0": (9100, 20000), "node-1": ()}, {"node-1": "10.0.0.5 port 9091 to 9999: in use"}, []
    )
    assert (refused.node, refused.status) == ("node-1", "failed")
    assert (other.node, other.status) == ("node-0", "ok")


# Clocks.


@pytest.mark.parametrize(
    ("ahead", "statuses"),
    [
        ([3600.0], ["warning"]),  # or this machine's own
        ([0.0, 6.0], ["ok", "failed"]),
        ([30.0, 30.1, 30.2], ["ok"] * 3),  # this machine's own is wrong
        ([30.0, 30.1, 0.0], ["ok", "ok", "failed"]),
        ([0.0, 0.0, 0.0, -3600.0], ["ok", "ok", "ok", "failed"]),
        ([-4.0, 0.0, 4.9], ["ok", "ok", "ok"]),
    ],
)
def test_wrong_clocks_are_found(ahead: list[float], statuses: list[str]) -> None:
    offsets = {f"node-{n}": Offset(ahead_s=at, error_s=0.01) for n, at in enumerate(ahead)}
    checks = check_clocks(offsets)
    assert [check.status for check in checks] == statuses
    for check in checks:
        assert (check.cause is None) == (check.hint is None) == (check.status == "ok")


# Disk, compute, and S3.


def test_disk() -> None:
    gib = 1 << 30
    (both,) = check_disk("node-0", [("/home/u", 1, 50 * gib), ("/tmp", 1, 50 * gib)])
    assert (both.subject, both.status, both.result) == ("/home/u and /tmp", "ok", "50.0 GiB free")
    home, tmp = check_disk("node-0", [("/home/u", 1, 50 * gib), ("/tmp", 2, 3 << 20)])
    assert (home.status, tmp.status, tmp.result) == ("ok", "failed", "3.0 MiB free")
    assert "df -h" in (tmp.hint or "")


@pytest.mark.parametrize(
    ("library", "wheel", "words"),
    [
        (
            "libcudart.so.9.0",
            "mxnet-cu90==1.6.0.post0",
            ["/usr/local/cuda-9.0", "[bootstrap] setup", "mxnet-cu112==1.9.1"],
        ),
        ("libcuda.so.1", "mxnet-cu112==1.9.1", ["no NVIDIA driver"]),
    ],
)
def test_a_missing_library_is_named_with_its_cause(library: str, wheel: str, words: list[str]) -> None:
    stderr = f"Traceback:\nOSError: {library}: cannot open shared object file: No such file or directory\n"
    stdout = f'a banner\n[1]\n{{"wheel": "{wheel}"}}\n'
    (failed,) = check_compute(local_node(0, None), ProbeResult(exit_code=1, stdout=stdout, stderr=stderr))
    assert failed.result == f"{library} is missing"
    assert all(word in (failed.cause or "") for word in words), failed.cause


# What the user sees.


def check(node: str, **more: Any) -> Check:
    return Check(**{"node": node, "check": "disk", "subject": "/", "status": "ok", "result": "much", **more})


def test_the_table_is_aligned_and_equal_failures_are_merged() -> None:
    failed = partial(check, status="failed", result="none", cause="full")
    checks = [check("node-0"), failed("node-1", hint="on node-1"), failed("node-10", hint="on node-10")]
    lines = render_checks(checks).splitlines()
    assert len({line.index(word) for line, word in zip(lines[1:], ["much", "none", "none"], strict=True)}) == 1
    assert render_troubles(checks, "failed").splitlines() == [
        "  node-1, node-10: disk, /: none",
        "    cause: full",
        "    try: on NODE",
    ]
    assert "try: on node-1" in render_troubles(checks[:2], "failed")
    assert render_troubles(checks[:1], "failed") == ""


def test_the_repr_of_a_probe_hides_its_order() -> None:
    probe = Probe(check="s3", modules=(), order={"secret": "canary"}, timeout_s=1.0, to_checks=check_compute)
    assert "canary" not in repr(probe)


# All nodes together, with PyTorch.

NAMES = ["node-0", "node-1", "node-2"]


@pytest.mark.parametrize(
    ("index", "messages", "status", "message"),
    [
        (1, [{"step": "reduce"}, {"sum": 6.0, "expected": 6.0}], "ok", "all_reduce with 2 other nodes"),
        (1, [{"sum": 5.0, "expected": 6.0}], "failed", "the sum came out as 5.0, not 6.0"),
        (0, [{"step": "join"}, {"missing": ["node-1", "node-2"]}], "failed", "node-1, node-2 did not join"),
        (2, [{"step": "join"}, {"missing": ["node-1"]}], "unchecked", "not checked: node-1 did not join"),
        (1, [{"step": "store"}, {"error": "X: y"}], "failed", "failed while connecting to the first node: X: y"),
        (1, [{"step": "reduce"}], "failed", "failed while adding up with the other nodes: it was killed by signal 6"),
    ],
)
def test_an_all_reduce(index: int, messages: list[dict[str, Any]], status: str, message: str) -> None:
    result = ProbeResult(
        exit_code=-6 if len(messages) == 1 else 0, stdout="\n".join(map(json.dumps, messages)), stderr=""
    )
    (check,) = check_all_reduce(local_node(index), result, names=NAMES, backend="gloo", port=20001)
    assert (check.check, check.subject, check.status, check.result) == ("all_reduce", "Gloo", status, message)


@pytest.mark.parametrize(
    ("gpus", "has_cuda", "backend"), [((), True, "gloo"), ((V100,), False, "gloo"), ((V100,), True, "nccl")]
)
def test_the_backend_of_an_all_reduce(gpus: tuple[tuple[str, str], ...], has_cuda: bool, backend: str) -> None:  # noqa: FBT001 - a column of the table
    torch = Torch(version="2.8.0", has_cuda=has_cuda)
    nodes = [replace(local_node(index, gpus=gpus), framework="pytorch", torch=torch) for index in range(2)]
    probes = joint_probes(nodes, port=20001, interfaces={"node-0": "eth0", "node-1": None})
    assert [probe.order["rank"] for probe in probes.values()] == [0, 1]
    assert {probe.order["backend"] for probe in probes.values()} == {backend}
    assert probes["node-1"].order["nodes"] == [("node-0", "127.0.0.2"), ("node-1", "127.0.0.3")]


def test_pytorch_computes() -> None:
    node = replace(local_node(0, gpus=(V100,)), framework="pytorch")

    def check_on(device: str) -> tuple[Check, ...]:
        lines = ({"wheel": "torch==2.8.0", "version": "2.8.0"}, {"device": device, "values": [[3.0] * 3] * 2})
        return check_compute(node, ProbeResult(exit_code=0, stdout="\n".join(map(json.dumps, lines)), stderr=""))

    (check,) = check_on("cuda:0")
    assert (check.status, check.result) == ("ok", "PyTorch 2.8.0: ones((2,3))*2+1 == 3")
    checks = check_on("cpu")
    assert [check.result for check in checks[1:]] == ["the driver reports 1 GPU(s), but torch==2.8.0 sees none"]
    assert '[bootstrap] torch = "auto"' in (checks[1].hint or "")
    (check,) = check_compute(node, ProbeResult(exit_code=1, stdout="", stderr="ImportError: libcudart.so.12: x"))
    assert (check.subject, check.result) == ("import torch", "ImportError: libcudart.so.12: x")
    assert compute_probes("none") == ()
