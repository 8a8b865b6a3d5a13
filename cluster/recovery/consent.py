"""Checks that a job may be continued from this machine: it was submitted here, or the user agrees."""

from collections.abc import Iterable

from msgspec import structs

from cluster.app import App
from foundation.errors import ClusterError
from train.job.consent import ENDED, digest_order, find_objection, is_noted, render_offer
from train.job.payload import shipped_scripts
from train.job.protocol import Order, Record
from train.job.reading import find_scope


def note_order(app: App, order: Order) -> None:
    """Notes what this machine submits, so that it continues the job later. A failure is only a warning."""
    _note(app, order.job, digest_order(order))


def note_end(app: App, job: str) -> None:
    """Notes that this machine has seen a job end. A failure is only a warning."""
    _note(app, job, ENDED)


def _note(app: App, job: str, what: str) -> None:
    try:
        app.files.note_order(job, what)
    except ClusterError as error:
        app.warn_of(error)


def check_consent(app: App, job: Record, names: Iterable[str]) -> None:
    """Asks the user about a job that was not submitted from this machine. names: the nodes that would be launched.

    --yes does not answer this question, since it was meant for something else. Raises ClusterError if the job must not
    be continued.
    """
    if app.on_head is not None:  # on the node that has the job itself
        return
    orders = app.files.find_orders()
    if is_noted(job, orders):
        return
    config, scripts = app.config, tuple(shipped_scripts())
    objection = find_objection(job, nodes=config.provision.nodes, orders=orders, scripts=scripts)
    if objection is not None:
        raise ClusterError(f"job {job.id} is not continued: {objection}", hint=f"cluster jobs; cluster stop {job.id}")
    if not app.is_interactive():
        raise ClusterError(
            f"job {job.id} is not continued: it was not submitted from this machine, and without a terminal nobody "
            "can be asked",
            hint="cluster up in a terminal",
        )
    scope = find_scope(structs.replace(config.train, args=job.command), config.data, command=job.command)
    urls = (scope.data_url, scope.results_url, *scope.also_read, *scope.also_written, *scope.read_secretly)
    app.say(
        render_offer(
            job,
            files=f"[bootstrap] sync, {job.script}" if job.script else "[bootstrap] sync",
            urls=tuple(url for url in urls if url is not None),
            launched=tuple(names),
            kind=config.provision.instance_type,
        )
    )
    if not app.confirm(f"Continue job {job.id}?", yes=False):
        raise ClusterError(f"job {job.id} is not continued", hint=f"cluster stop {job.id} ends it")
