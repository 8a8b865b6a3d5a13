"""The numbers of a report as JSON. Pure."""

from collections.abc import Sequence
from typing import Any

from cluster.report.analysis import Metric, find_metrics, find_slowest
from cluster.report.curves import Point, Summary
from cluster.report.job import JobData
from cluster.views.document import as_document, iso_time, pick


def report_document(job: JobData) -> dict[str, Any]:
    """Returns what `cluster report --json` prints of a job."""
    record, history, metrics = job.record, job.history, find_metrics(job)
    slowest, error = find_slowest(metrics, job), history.first_error
    return {
        **pick(record, "id name exit_code error"),
        "state": job.state,
        "started_at": iso_time(record.started_at),
        "ended_at": iso_time(record.ended_at),
        "cause": record.result.cause,
        "first_error": error
        and {**pick(error.process, "role rank"), "node": error.process.host, "text": "\n".join(error.lines)},
        "hints": [text for _, text in history.hints],
        "curves": {metric.name: _describe_metric(metric, job.start) for metric in metrics},
        "slowest": None if slowest is None else {"label": slowest[0], "why": slowest[1]},
        "attempts": [as_document(attempt, rounded=False) for attempt in record.attempts],
        **pick(history, "lines examined"),
        "cost_usd": job.cost_usd,
    }


def _describe_metric(metric: Metric, start: float) -> dict[str, Any]:
    ranks = {label: _describe_curve(curve.summary, curve.points, start) for label, curve in metric.ranks.items()}
    return {"together": _describe_curve(metric.summary, metric.together, start), "ranks": ranks}


def _describe_curve(summary: Summary, points: Sequence[Point], start: float) -> dict[str, Any]:
    """points: seconds since the job's start, and the value."""
    return {
        **{name: getattr(summary, name) for name in ("mean", "least", "greatest")},
        "points": [(round(point.at - start, 3), point.value) for point in points],
    }
