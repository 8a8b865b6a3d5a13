"""The measures of `cluster verify --deep`: what nodes report, and which of them is far from the others. Pure."""

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from bootstrap.ssh.node_program import read_program
from bootstrap.verify.checks import EVERYWHERE, Check, Probe, ProbeResult, Status
from foundation.decode import convert

TIMEOUT_S = 1200.0
ENOUGH, ENOUGH_COMPUTED, ENOUGH_OF_TWO = 0.6, 0.8, 0.5
"""The share of the median that is not far from it: of rates, which vary, of what GPUs compute, of the better of two."""
COMPUTED = ("matmul", "memory")


class _Line(Struct, frozen=True):
    """A line of a program in node/."""

    measure: Annotated[str, Meta(min_length=1, max_length=100)]
    value: Annotated[float, Meta(ge=0)] | None = None
    unit: str = ""
    failed: str | None = None
    skipped: str | None = None


def burn_in_probe(framework: str) -> Probe:
    """The probe of a node's disk and GPUs. Reads our code."""
    modules = (("burn_in", read_program("probes/burn_in.py")),)
    order = {"framework": framework, "is_deep": True}
    return Probe(check="measure", modules=modules, order=order, timeout_s=TIMEOUT_S, to_checks=lambda *_: ())


def find_measures(node: str, probe: Probe, result: ProbeResult) -> tuple[Check, ...]:
    """What a probe has measured, if it was to, which `judge` compares; and a failure if it did not get to its end."""
    if not probe.order.get("is_deep"):
        return ()
    checks = read_measures(node, result.messages)
    if result.exit_code == 0:
        return checks
    subject, message = f"program of {probe.check}", f"it {result.ending}"
    failed = Check(
        node=node, check="measure", subject=subject, status="failed", result=message, cause=result.last_words
    )
    return (*checks, failed)


def read_measures(node: str, messages: Iterable[Mapping[str, Any]]) -> tuple[Check, ...]:
    """The measures among a program's messages."""
    return tuple(_to_check(node, message) for message in messages if "measure" in message)


def _to_check(node: str, message: Mapping[str, Any]) -> Check:
    try:
        line = convert(message, _Line)
    except ValueError as error:
        line = _Line(measure="?", failed=f"the node sent an invalid measure: {error}")
    node = EVERYWHERE if line.measure.startswith("all_reduce") else node
    status: Status = "failed" if line.failed else "unchecked" if line.skipped else "ok"
    text = line.failed or (f"not measured: {line.skipped}" if line.skipped else "passed")
    return Check(
        node=node, check="measure", subject=line.measure, status=status, result=text, value=line.value, unit=line.unit
    )


def judge(checks: Sequence[Check], kinds: Mapping[str, Hashable]) -> list[Check]:
    """The checks, with the medians of the same measure; those far below it have failed.

    kinds: nodes of different kinds, by name, are not compared.
    """
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for check in checks:
        groups[_group(check, kinds)] += [] if check.value is None else [check.value]
    return [
        check if check.value is None or check.status == "failed" else _compare(check, groups[_group(check, kinds)])
        for check in checks
    ]


def _group(check: Check, kinds: Mapping[str, Hashable]) -> Hashable:
    return kinds.get(check.node), check.subject.rstrip("()0123456789")


def _compare(check: Check, values: Sequence[float]) -> Check:
    value, median, is_computed = check.value or 0.0, statistics.median(values), check.subject.startswith(COMPUTED)
    message = f"{_number(value)} {check.unit}" + f", median {_number(median)}" * (len(values) > 1)
    check = replace(check, result=message, median=median)
    least = (ENOUGH_COMPUTED if is_computed else ENOUGH) * median
    if value >= (ENOUGH_OF_TWO * max(values) if len(values) == 2 else least):
        return check
    return replace(
        check,
        status="failed",
        cause=f"it is far from the others: {value / median:.0%} of their median",
        hint=f"run cluster verify --deep again; if it fails again, terminate {check.node}'s instance, then cluster up",
    )


def _number(value: float) -> str:
    """Three significant digits, or all digits before the point if there are more."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
