"""The measures of `cluster verify --deep`: what nodes report, and which of them is far from the others. Pure."""

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from bootstrap.verify.checks import EVERYWHERE, Check
from foundation.decode import convert

ENOUGH, ENOUGH_COMPUTED = 0.6, 0.8
"""The share of the median that is not far from it: of rates, which vary, and of what GPUs compute."""


class _Line(Struct, frozen=True):
    """A line of a program in node/."""

    measure: Annotated[str, Meta(min_length=1, max_length=100)]
    value: Annotated[float, Meta(ge=0)] | None = None
    unit: str = ""
    failed: str | None = None
    skipped: str | None = None


def read_measures(node: str, messages: Iterable[Mapping[str, Any]]) -> tuple[Check, ...]:
    """The measures among a program's messages, which `judge` compares."""
    return tuple(_to_check(node, message) for message in messages if "measure" in message)


def _to_check(node: str, message: Mapping[str, Any]) -> Check:
    try:
        line = convert(message, _Line)
    except ValueError as error:
        line = _Line(measure="?", failed=f"the node sent an invalid measure: {error}")
    return Check(
        node=EVERYWHERE if line.measure.startswith("all_reduce") else node,
        check="measure",
        subject=line.measure,
        status="failed" if line.failed else "unchecked" if line.skipped else "ok",
        result=line.failed or (f"not measured: {line.skipped}" if line.skipped else "passed"),
        value=line.value,
        unit=line.unit,
    )


def judge(checks: Sequence[Check], kinds: Mapping[str, Hashable]) -> list[Check]:
    """The checks, with the medians of the same measure; those far below it have failed.

    kinds: nodes of different kinds, by name, are not compared.
    """
    groups: dict[Hashable, list[Check]] = defaultdict(list)
    for check in checks:
        groups[kinds.get(check.node), check.subject.rstrip("()0123456789")].append(check)
    compared = {id(one): _compare(one, group) for group in groups.values() for one in group if one.value is not None}
    return [check if check.status == "failed" else compared.get(id(check), check) for check in checks]


def _compare(check: Check, group: Sequence[Check]) -> Check:
    values = [one.value for one in group if one.value is not None]
    value, median = check.value or 0.0, statistics.median_high(values)  # of two, the better one
    message = f"{_number(value)} {check.unit}" + f", median {_number(median)}" * (len(values) > 1)
    check = replace(check, result=message, median=median)
    if value >= median * (ENOUGH_COMPUTED if check.subject.startswith(("matmul", "memory")) else ENOUGH):
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
