"""Reads what a report shows of a job: its record and log, from the head or [data] results, and what its nodes are."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial

from msgspec import Struct

from cluster.app import App
from cluster.jobs import JobSources
from cluster.report.history import History
from cluster.views.jobs import find_cost
from cluster.views.live import advise_on_module, advise_on_path
from node.protocol import LogWanted
from node.samples import Sample
from train.follow.advice import Advisor
from train.follow.known_mistakes import ENDINGS, ENDINGS_IN_CONTAINERS
from train.follow.records import JobRecord, open_s3_log
from train.follow.run import LogStream
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
    endings = ENDINGS if record.spec.image is None else ENDINGS_IN_CONTAINERS
    program = (record.spec.script or "", *record.spec.command)
    history = History(
        Advisor(
            partial(advise_on_module, app, program, record.spec.image),
            advise_on_path=partial(advise_on_path, app),
            endings=endings,
        )
    )
    with _open_log(app, sources, record, history) as lines:
        history.read(lines)
    now = time.time()
    return JobData(
        record=record,
        history=history,
        samples=tuple(_read_samples(app, sources, record)),
        cost_usd=find_cost(record, datetime.fromtimestamp(now, UTC)),
        price_note=app.price_note,
        now=now,
    )


@contextmanager
def _open_log(app: App, sources: JobSources, record: JobRecord, history: History) -> Iterator[Iterator[bytes]]:
    """Yields the lines of a job's log so far."""
    if record.source == "s3" or sources.head is None:
        log = open_s3_log(str(app.config.data.s3_results), record.id, region=app.config.provision.region)
        history.events.learn(record.roles)
        yield log.lines()
        return
    begin = history.events.learn
    stream = LogStream(sources.head, record.id, say=app.say, wait=False, wanted=LogWanted(), begin=begin)
    with closing(stream.lines()) as lines:
        yield lines


def _read_samples(app: App, sources: JobSources, record: JobRecord) -> list[Sample]:
    config = app.config
    return read_samples(record, sources.head, results=config.data.s3_results, region=config.provision.region)
