"""`cluster verify --deep`: the measures of a node, and which node is far from the others."""

import importlib.util
import itertools
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from bootstrap.verify.checks import EVERYWHERE, Probe, ProbeResult, compute_probes
from bootstrap.verify.measures import judge, read_measures
from local_nodes import local_node
from node.setup.burn_in import read_dcgm
from project import REPOSITORY


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "node" / "setup" / "probes" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judged(subject: str, *values: float, kinds: str = "") -> list[str]:
    """The nodes that are named. kinds: a letter for each node."""
    messages = [{"measure": subject, "value": value, "unit": "MB/s"} for value in values]
    checks = [check for number, message in enumerate(messages) for check in read_measures(f"{number}", [message])]
    found = judge(checks, dict(zip(map(str, range(len(values))), kinds, strict=False)))
    assert all(check.cause and check.hint and f"{check.value:.0f}" in check.result for check in found if check.cause)
    return [check.node for check in found if check.status == "failed"]


@pytest.mark.parametrize(
    ("subject", "values", "kinds", "named"),
    [
        ("disk write", (100, 100, 61), "", []),
        ("disk write", (100, 100, 59), "", ["2"]),
        ("disk write", (100, 100, 1000), "", []),  # faster is not far
        ("matmul cuda:7", (100, 100, 79), "", ["2"]),
        ("S3 read", (0, 0, 0), "", []),
        ("network", (5,), "", []),
        ("network", (100, 59), "", ["1"]),  # of two, the better one is the median
        ("matmul cuda:0", (100, 100, 10, 10), "aabb", []),  # other GPUs
    ],
)
def test_a_node_far_below_the_others_is_named(
    subject: str, values: tuple[float, ...], kinds: str, named: list[str]
) -> None:
    assert judged(subject, *values, kinds=kinds) == named


def test_the_gpus_of_a_node_are_compared() -> None:
    messages = [{"measure": f"matmul cuda:{number}", "value": 30 if number == 5 else 60} for number in range(8)]
    found = judge(read_measures("node-0", messages), {})
    assert [check.subject for check in found if check.status == "failed"] == ["matmul cuda:5"]
    assert {check.median for check in found} == {60}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ({"measure": "GPUs", "skipped": "no GPU"}, ("node-0", "unchecked", "not measured: no GPU")),
        ({"measure": "disk read", "failed": "OSError: I/O error"}, ("node-0", "failed", "OSError: I/O error")),
        ({"measure": "DCGM level 2"}, ("node-0", "ok", "passed")),
        ({"measure": "all_reduce 1 MiB", "value": 2, "unit": "GB/s"}, (EVERYWHERE, "ok", "2 GB/s")),
        ({"measure": "kv-store", "value": 9, "failed": "wrong sums"}, ("node-0", "failed", "wrong sums")),
    ],
)
def test_a_measure_says_what_came_of_it(message: dict[str, Any], shown: tuple[str, str, str]) -> None:
    (check,) = judge(read_measures("node-0", [message, {"sum": 1.0}]), {})
    assert (check.node, check.status, check.result) == shown


def test_a_program_that_does_not_get_to_its_end_is_a_failure() -> None:
    """Unless a check of its own says so."""
    node, result = local_node(0, None), ProbeResult(exit_code=None, stdout="", stderr="")
    (probe,) = compute_probes("none", is_deep=True)
    words = ("measure", "program", "failed", "it did not end in time and was killed")
    (found,) = probe.find_checks(node, result)
    assert (found.check, found.subject, found.status, found.result) == words
    failed = Probe(check="s3", order={}, timeout_s=1.0, to_checks=lambda *_: (found,))
    assert failed.find_checks(node, result) == (found,)


def lines(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    return {line.pop("measure"): line for line in map(json.loads, capsys.readouterr().out.splitlines())}


class Array(list[int]):
    """A few numbers, in place of PyTorch's tensors and MXNet's arrays."""

    def __ne__(self, other: object) -> "Array":  # type: ignore[override]
        others = other if isinstance(other, Array) else [other] * len(self)
        return Array(int(mine is not its) for mine, its in zip(self, others, strict=True))

    def max(self) -> int:
        return max(self)


@pytest.mark.parametrize(
    ("is_wrong", "failed"), [("nothing", []), ("product", ["matmul gpu(0)"]), ("memory", ["memory gpu(0)"])]
)
def test_a_gpu_that_computes_or_remembers_wrong_fails(
    capsys: pytest.CaptureFixture[str], is_wrong: str, failed: list[str]
) -> None:
    numbers = itertools.count()

    def square(_: Array) -> Array:
        return Array([next(numbers) if is_wrong == "product" else 4])

    def fill(_: str, value: int) -> Array:
        return Array([0 if is_wrong == "memory" else value])

    module = load("compute")
    module.MATMUL_S = 0.01
    library = {"devices": ["gpu(0)"], "error": RuntimeError, "draw": lambda _: Array([1]), "square": square}
    module.measure_gpus({**library, "fill": fill, "find_free": lambda _: 1 << 30})
    found = lines(capsys)
    assert [name for name, line in found.items() if "failed" in line] == failed
    assert sorted(found) == ["matmul gpu(0)", "memory gpu(0)"]
    assert all(line.get("value", 1) > 0 for line in found.values())


DCGM = """\
Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
| Denylist                  | Pass                                           |
| GPU Memory                | {}                                     |
"""


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (DCGM.format("Pass - All"), {}),
        (DCGM.format("Fail - GPU: 3"), {"failed": "GPU Memory Fail - GPU: 3"}),
        ("Error: unable to establish a connection\n", {"skipped": "Error: unable to establish a connection"}),
    ],
)
def test_the_table_of_dcgmi(message: str, found: dict[str, str]) -> None:
    assert read_dcgm(message) == found


@pytest.mark.parametrize("size", [2, 3, 8])
def test_only_the_slow_node_is_slow_in_every_pair(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    """Node 1 is slow. In each round, a rank is in one pair at most: all pairs communicate at the same time."""
    module = load("all_reduce")
    rounds: list[list[int]] = []

    def find_rate(_: object, __: object, ___: int, group: Sequence[int] = (1,)) -> int:
        return 1 if 1 in group else 10

    def new_group(pair: Sequence[int]) -> Sequence[int]:
        rounds[-1] += pair
        return pair

    monkeypatch.setattr(module, "find_rate", find_rate)
    distributed = SimpleNamespace(new_group=new_group, barrier=lambda: rounds.append([]))
    for rank in range(size):
        rounds.append([])
        module.measure(distributed, lambda mib: mib, rank, size)
        found = lines(capsys)
        assert found.get("network", {}).get("value") == (None if size == 2 else 1 if rank == 1 else 10)
        assert ("all_reduce 128 MiB" in found) == (rank == 0)
    assert all(len(set(ranks)) == len(ranks) for ranks in rounds)
