"""Reads what a report shows of a job: its record and log, from the head or [data] results, and what its nodes are."""

import time
from datetime import UTC, datetime

from msgspec import Struct

from cluster.app import App
from cluster.jobs import JobSources
from cluster.report.history import History
from cluster.views.jobs import find_cost
from cluster.views.live import make_advisor
from node.samples import Sample
from train.follow.records import JobRecord
from train.follow.samples import read_samples


class JobData(Struct, frozen=True, kw_only=True):
    """What a report shows of a job. Times are in seconds since the epoch.

    samples: of all nodes, in the order of time; () for a job without them. price_note: how the cost is to be read. now:
    when this was read.
    """

    record: JobRecord
    history: History
    samples: tuple[Sample, ...] = ()
    cost_usd: float | None = None
    price_note: str = ""
    now: float = 0.0

    @property
    def state(self) -> str:
        """The job's state: by its log, which may be newer than its record."""
        return self.history.result.state if self.history.result else self.record.state

    @property
    def start(self) -> float:
        """Where the axis of time begins."""
        return self.record.started_at or self.history.began_at or self.record.submitted_at

    @property
    def end(self) -> float:
        """Where the axis of time ends: the job's end, or its newest line."""
        return max(self.record.ended_at or self.history.now or self.now, self.start)

    @property
    def span(self) -> tuple[float, float]:
        """Where the axis of time begins and ends."""
        return (self.start, self.end)


def read_job(app: App, sources: JobSources, words: str | None) -> JobData:
    """Reads the job that `words` names, or the newest one. Raises ClusterError or a subclass."""
    record = sources.find_job(words)
    history = History(make_advisor(app, record.spec))
    with sources.open_blocks(record, history.events.learn) as blocks:
        history.read(blocks)
    if history.result is None:
        history.note_culprit(next((one.culprit for one in reversed(record.attempts) if one.culprit is not None), None))
    data, now = app.config.data, time.time()
    samples = read_samples(record, sources.head, results=data.s3_results, region=app.config.provision.region)
    return JobData(
        record=record,
        history=history,
        samples=tuple(samples),
        cost_usd=find_cost(record, datetime.fromtimestamp(now, UTC)),
        price_note=app.price_note,
        now=now,
    )
