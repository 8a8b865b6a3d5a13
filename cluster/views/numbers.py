"""The numbers that a job's workers report, as a table, as JSON and as CSV. Pure."""

import csv
import io
import time
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from cluster.views.document import iso_time
from cluster.views.layout import render_table
from node.job.scalars import Row
from train.follow.progress import render_value

_FIXED = ("time", "worker", "host", "epoch", "batch", "step")


def render_numbers(rows: Sequence[Row], *, columns: int | None = None) -> str:
    """Renders a table; one sentence when there are none. columns: the width that it fits into."""
    if not rows:
        return "no worker has reported a number"
    names = find_names(rows)
    heading = tuple(name.upper() for name in _FIXED)
    table = [(*heading, *names), *(_render_row(row, names) for row in rows)]
    return render_table(table, columns=columns, drop=("HOST", "TIME", "BATCH", *reversed(names[2:]), "EPOCH"))


def find_names(rows: Sequence[Row]) -> tuple[str, ...]:
    """Returns the names of all numbers, in the order of their first reports."""
    return tuple(dict.fromkeys(name for row in rows for name in row.numbers))


def number_documents(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns the output of `cluster jobs JOB --metrics --json`."""
    documents = [to_builtins(row) for row in rows]
    return [{"time": iso_time(document.pop("at")), **document} for document in documents]


def render_csv(rows: Sequence[Row]) -> str:
    """Renders a table as CSV, with one column for each number."""
    names = find_names(rows)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*_FIXED, *names))
    for row in rows:
        numbers = (row.numbers.get(name, "") for name in names)
        writer.writerow((iso_time(row.at), row.worker, row.host, row.epoch, row.batch, row.step, *numbers))
    return out.getvalue().rstrip("\n")


def _render_row(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    numbers = ("-" if (value := row.numbers.get(name)) is None else render_value(value) for name in names)
    fixed = (row.worker, row.host, *("-" if at is None else at for at in (row.epoch, row.batch)), row.step)
    return (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.at)), *map(str, fixed), *numbers)
