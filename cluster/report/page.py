"""The page of one job, or of several that are compared. Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from statistics import fmean
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from msgspec.structs import replace

from cluster.report.analysis import (
    NODE_NUMBERS,
    Metric,
    combine_ranks,
    find_metrics,
    find_node_curves,
    find_process_curves,
    find_slowest,
    find_traffic,
)
from cluster.report.blocks import (
    Figure,
    Section,
    Table,
    make_curves_figure,
    make_heat_figure,
    render_number,
)
from cluster.report.charts import render_clock
from cluster.report.curves import Curve, Summary
from cluster.report.history import RankHistory
from cluster.report.job import JobData
from cluster.views.results import render_files
from cluster.views.status import render_usd
from cluster.views.terminal import escape
from foundation.durations import render_rounded
from node.job.scalars import EPOCH_TIME, SPEED
from node.protocol import ENDED, JobHost
from node.train_settings import TrainSettings
from train.follow.progress import render_rate

LONGEST = 2000  # characters of a value
MOST_ROWS = 200  # of a table
DIGEST = 12  # characters
MACHINE = ("type", "zone", "image", "system", "kernel", "driver")


def render_report(jobs: Sequence[JobData]) -> str:
    """The page of one job or of several: one HTML file, which needs nothing else. Pure."""
    at = datetime.fromtimestamp(max(job.now for job in jobs), UTC)
    view = describe_job(jobs[0]) if len(jobs) == 1 else _compare(jobs)
    return _environment().get_template("page.html").render(**view, most_rows=MOST_ROWS, at=f"{at:%Y-%m-%d %H:%M} UTC")


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("cluster.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else clean(str(value)),
    )


def clean(text: str) -> str:
    """Text of a node or of S3, without control characters and of limited length."""
    return escape(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


# -- one job -----------------------------------------------------------------------------------------------------------


def describe_job(job: JobData) -> dict[str, Any]:
    """What the template shows of a job."""
    metrics = find_metrics(job)
    sections = (
        _make_curves(job, metrics),
        _make_ranks(job, metrics),
        _make_nodes(job),
        _make_timeline(job),
        _make_data(job),
        Section(title="What ran", facts=_describe_run(job)),
    )
    result = job.history.result or job.record.result
    return {
        "title": f"{job.record.name} {job.state}: job {job.record.id}",
        "job": job,
        "result": result,
        "warnings": [*job.record.warnings, *job.history.broken.values()],
        "hints": [hint for hint in dict.fromkeys(job.history.hints) if hint[1] != result.cause],
        "tiles": _make_tiles(job, metrics),
        "sections": [section for section in sections if section is not None],
        "note": f"The curves are made of {job.history.examined:,} of {job.history.lines:,} lines of output.",
    }


def _make_tiles(job: JobData, metrics: Sequence[Metric]) -> dict[str, str]:
    tiles = {"time": render_rounded(job.end - job.start) if job.record.started_at else "not started"}
    for metric in [metric for metric in metrics if metric.name != EPOCH_TIME][:4]:
        if metric.name == SPEED:
            tiles["samples/s, mean"] = render_number(metric.summary.mean)
        else:
            tiles[f"{metric.name}, last"] = render_number(metric.summary.last)
    nodes = job.record.nodes
    types = [host.machine.type for host in nodes if host.machine.type]
    return tiles | {"cost": render_usd(job.cost_usd), "nodes": _count(types) or str(len(nodes))}


def _count(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(one)} x {one}" for one in dict.fromkeys(names))


def _make_curves(job: JobData, metrics: Sequence[Metric]) -> Section | None:
    figures: list[Figure] = []
    for metric in metrics:
        shown = metric
        if metric.name == SPEED and len(metric.ranks) > 1:
            title, total = f"{SPEED}, all ranks", {"sum": metric.summary}
            figures.append(make_curves_figure(title, {}, together=metric.together, span=job.span, summaries=total))
            shown = combine_ranks(f"{SPEED} by rank", metric.ranks, job, fmean)
        rows = {"mean": shown.summary} if len(metric.ranks) > 1 else {}
        rows |= {label: curve.summary for label, curve in metric.ranks.items()}
        figures.append(
            make_curves_figure(shown.name, metric.ranks, together=shown.together, span=job.span, summaries=rows)
        )
    text = "" if figures else "The job has reported no numbers that cluster knows."
    return Section(title="Curves", text=text, figures=figures)


def _make_ranks(job: JobData, metrics: Sequence[Metric]) -> Section | None:
    ranks = job.history.ranks
    if not ranks:
        return None
    slowest = find_slowest(metrics, job)
    even = "No rank is clearly slower than the others." if len(ranks) > 1 else ""
    text = f"The slowest is {slowest[0]}: {slowest[1]}." if slowest else even
    speeds = next((metric.ranks for metric in metrics if metric.name == SPEED and len(metric.ranks) > 1), {})
    heats = {f"{SPEED} by rank and time": speeds, "Cores used, by rank": find_process_curves(job)}
    figures = [make_heat_figure(title, curves, span=job.span) for title, curves in heats.items() if curves]
    head = ("rank", "node", "end", *(metric.name for metric in metrics[:5]))
    rows = [_describe_rank(label, one, metrics[:5]) for label, one in ranks.items()]
    table = Table(caption="Ranks: mean speed, last value of other numbers", head=head, rows=rows)
    return Section(title="Ranks", text=text, figures=figures, tables=[table])


def _describe_rank(label: str, one: RankHistory, metrics: Sequence[Metric]) -> tuple[str, ...]:
    process = one.process
    code = "" if process.exit_code is None else f"exit code {process.exit_code}"
    end = f"signal {process.signal}" if process.signal is not None else code or "-"
    curves = ((metric.name, metric.ranks.get(label)) for metric in metrics)
    values = [None if one is None else one.mean if name == SPEED else one.points[-1].value for name, one in curves]
    return (label, process.host, end, *map(render_number, values))


def _make_nodes(job: JobData) -> Section | None:
    if not job.record.nodes:
        return None
    rows = [_describe_node(host) for host in job.record.nodes]
    head = ("node", "type", "zone", "GPUs", "driver", "memory", "workers + servers", "price/h", "instance")
    figures = []
    for title, find in NODE_NUMBERS.items():
        if curves := find_node_curves(job.samples, find):
            figures.append(make_curves_figure(title, curves, span=job.span, what="node"))
    return Section(title="Nodes", figures=figures, tables=[Table(caption="Nodes", head=head, rows=rows)])


def _describe_node(host: JobHost) -> tuple[str, ...]:
    machine = host.machine
    cells = (
        machine.type,
        machine.zone,
        _count(machine.gpus) or str(host.gpus or ""),
        machine.driver,
        "" if host.memory_mib is None else f"{host.memory_mib / 1024:.0f} GiB",
        f"{host.workers} + {host.servers}",
        render_usd(host.usd_per_hour),
        host.instance_id or "",
    )
    return (host.name, *(cell or "-" for cell in cells))


def _make_timeline(job: JobData) -> Section:
    states = [*(one for one in job.history.states if one[1] not in ENDED), (job.end, "")]
    whole = max(job.end - states[0][0], 1e-3)
    bar = [
        (state, (after[0] - at) / whole * 100, render_rounded(after[0] - at))
        for (at, state), after in pairwise(states)
        if after[0] > at
    ]
    marks = [(_clock(at, job), *what) for at, *what in job.history.marks]
    tables = [Table(caption="Events", head=("time", "event", "what"), rows=marks)] if marks else []
    if len(job.record.attempts) > 1:
        tables.insert(0, _make_attempts(job))
    started = datetime.fromtimestamp(job.start, UTC)
    text = f"Started on {started:%Y-%m-%d at %H:%M:%S} UTC; times count from then."
    return Section(title="Timeline", text=text, bar=bar, tables=tables)


def _clock(at: float, job: JobData) -> str:
    return f"-{render_clock(job.start - at)}" if at < job.start - 0.5 else render_clock(max(at - job.start, 0.0))


def _make_attempts(job: JobData) -> Table:
    rows = [
        (
            str(attempt.number),
            _clock(attempt.started_at, job),
            "-" if attempt.ended_at is None else render_rounded(attempt.ended_at - attempt.started_at),
            attempt.reason or "-",
            ", ".join(attempt.lost) or "-",
            "-" if attempt.lost_batches is None else str(attempt.lost_batches),
            render_usd(attempt.cost_usd),
        )
        for attempt in job.record.attempts
    ]
    head = ("attempt", "started", "ran", "ended by", "lost nodes", "batches repeated", "cost")
    return Table(caption="Attempts", head=head, rows=rows)


def _make_data(job: JobData) -> Section:
    spec = job.record.spec
    traffic = {
        f"bytes {name}": f"{render_rate(value)}B" for name, value in find_traffic(job.samples).items() if value > 1e3
    }
    facts = {
        "data": spec.env.get("CLUSTER_DATA_URL", ""),
        **traffic,
        "checkpoints and new files": render_files(job.record),
        "results": spec.output_url or "",
        "cost": " ".join(filter(None, [render_usd(job.cost_usd), job.price_note and f"({job.price_note})"])),
    }
    return Section(title="Data, files and cost", facts={name: value for name, value in facts.items() if value})


def _describe_run(job: JobData) -> dict[str, str]:
    """What ran, by name; the settings that differ from their defaults last."""
    spec = job.record.spec
    command = [word.rpartition("/")[2] if "/.cluster/" in word else word for word in spec.command]
    machines = {name: dict.fromkeys(getattr(host.machine, name) for host in job.record.nodes) for name in MACHINE}
    facts = {
        "command": " ".join(command),
        "framework": spec.library or "",
        "image": spec.image or "",
        "environment": spec.python.partition("/.cluster/env/")[2].partition("/")[0][:DIGEST],  # of its packages
        "wheels": " ".join(spec.packages),
        "code": (spec.code or "")[:DIGEST],
        "your files": (spec.project or "")[:DIGEST],
        "workers": str(spec.workers),
        "servers": str(spec.servers) if spec.servers else "",
        "nodes": ", ".join(host.name for host in job.record.nodes),
        **{f"machine {name}": ", ".join(filter(None, found)) for name, found in machines.items()},
        "started by": spec.owner or "",
    }
    ours, defaults = (msgspec.to_builtins(train) for train in (spec.train, TrainSettings()))
    changed = {name: value for name, value in ours.items() if value != defaults.get(name) and name != "script_source"}
    texts = {name: one if isinstance(one, str) else msgspec.json.encode(one).decode() for name, one in changed.items()}
    facts |= {f"[train] {name}": text for name, text in texts.items()}
    return {name: value for name, value in facts.items() if value}


# -- several jobs ------------------------------------------------------------------------------------------------------


def _compare(jobs: Sequence[JobData]) -> dict[str, Any]:
    """What the template shows of several jobs."""
    labels, metrics = _make_labels(jobs), [find_metrics(job) for job in jobs]
    ends = [{"state": job.state, **_make_tiles(job, found)} for job, found in zip(jobs, metrics, strict=True)]
    runs = [_describe_run(job) for job in jobs]
    settings = _tabulate("Settings that differ", labels, runs, only_different=True)
    same = {name: value for name, value in runs[0].items() if all(run.get(name) == value for run in runs)}
    figures = _compare_curves(labels, jobs, metrics)
    sections = [
        Section(title="Results", tables=[_tabulate("Results", labels, ends)]),
        Section(title="Curves", text="All ranks together; times count from each job's start.", figures=figures),
        Section(title="Settings that differ", tables=[settings]),
        Section(title="Same settings", facts=same),
    ]
    title = f"{len(jobs)} jobs: {', '.join(labels)}"
    return {"title": title, "job": None, "tiles": {}, "sections": sections, "note": ""}


def _compare_curves(
    labels: Sequence[str], jobs: Sequence[JobData], metrics: Sequence[Sequence[Metric]]
) -> list[Figure]:
    span = (0.0, max(job.end - job.start for job in jobs))
    curves: dict[str, dict[str, Curve]] = {}
    summaries: dict[str, dict[str, Summary]] = {}
    for label, job, found in zip(labels, jobs, metrics, strict=True):
        for metric in found:
            of_all = curves.setdefault(metric.name, {one: Curve() for one in labels})  # each job keeps its colour
            of_all[label] = Curve(replace(point, at=point.at - job.start) for point in metric.together)
            summaries.setdefault(metric.name, {})[label] = metric.summary
    return [
        make_curves_figure(name, of_all, span=span, what="job", summaries=summaries[name])
        for name, of_all in curves.items()
    ]


def _make_labels(jobs: Sequence[JobData]) -> list[str]:
    names = [job.record.name for job in jobs]
    return names if len(set(names)) == len(names) else [f"{job.record.name} {job.record.id}" for job in jobs]


def _tabulate(
    caption: str, labels: Sequence[str], columns: Sequence[Mapping[str, str]], *, only_different: bool = False
) -> Table:
    """A row for each name in the columns."""
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [(name, *(column.get(name, "-") for column in columns)) for name in names]
    shown = [row for row in rows if not only_different or len(set(row[1:])) > 1]
    return Table(caption=caption, head=("", *labels), rows=shown)
