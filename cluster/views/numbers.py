"""The numbers that a job's workers report, as text, as JSON and as CSV, each while it is read. Pure."""

import csv
import json
import time
from collections.abc import Iterable, Iterator
from types import SimpleNamespace

from cluster.views.document import iso_time, pick
from node.job.scalars import Row
from train.follow.progress import render_value


def render_numbers(rows: Iterable[Row]) -> Iterator[str]:
    """Yields a line for each report: "2026-11-29 10:00:00 UTC  worker 0 node-0  epoch 1  step 20  loss 0.5"."""
    row = None
    for row in rows:
        at = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(row.at))
        where = {"epoch": row.epoch, "batch": row.batch, "step": row.step}
        numbers = {name: render_value(value) for name, value in row.numbers.items()}
        words = (f"{name} {value}" for name, value in (where | numbers).items() if value is not None)
        yield "  ".join([at, f"worker {row.worker} {row.host}", *words])
    if row is None:
        yield "no worker has reported a number"


def render_json(rows: Iterable[Row]) -> Iterator[str]:
    """Yields a JSON object for each report."""
    for row in rows:
        where = {"time": iso_time(row.at), "rank": row.worker, "node": row.host}
        yield json.dumps(where | pick(row, "step epoch batch numbers"))


def render_csv(rows: Iterable[Row]) -> Iterator[str]:
    """Yields the lines of a table with a row for each number."""
    table = csv.writer(SimpleNamespace(write=str), lineterminator="")  # writerow returns what write returns
    yield "time,rank,node,epoch,batch,step,name,value"
    for row in rows:
        at = iso_time(row.at)
        for name, value in row.numbers.items():
            yield table.writerow((at, row.worker, row.host, row.epoch, row.batch, row.step, name, value))
