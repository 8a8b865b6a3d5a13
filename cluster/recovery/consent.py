"""Checks that a job may be continued from this machine: only a job that was submitted here.

Whoever can write to [data] results, such as any job, or controls the head, can forge a record. Continuing a job
launches nodes, sends files and creates credentials. So this machine notes the digest of each order that it submits, and
continues only records with a noted digest.
"""

import hashlib
import json
from collections.abc import Sequence

from msgspec import to_builtins

from cluster.app import App
from foundation.errors import ClusterError
from node.protocol import JobHost, JobSpec, Order, Record

ENDED = "ended"
"""Noted in place of the digest when this machine has seen the job end: its record no longer continues anything."""


def digest(spec: JobSpec, nodes: Sequence[JobHost]) -> str:
    """Returns the digest of what was ordered: not of the instances and addresses of its nodes."""
    hosts = [(host.name, host.workers, host.servers, host.own_host is not None) for host in nodes]
    return hashlib.sha256(json.dumps([to_builtins(spec), hosts], sort_keys=True).encode()).hexdigest()


def note_order(app: App, order: Order) -> None:
    """Notes what this machine submits, so that it continues the job later. A failure is only a warning."""
    _note(app, order.spec.id, digest(order.spec, order.hosts))


def note_end(app: App, job: str) -> None:
    """Notes that this machine has seen a job end. A failure is only a warning."""
    _note(app, job, ENDED)


def _note(app: App, job: str, what: str) -> None:
    try:
        app.files.note_order(job, what)
    except ClusterError as error:
        app.warn_of(error)


def check_consent(app: App, job: Record) -> None:
    """Raises ClusterError for a job that must not be continued from this machine."""
    if app.on_head is not None:  # on the node that has the job itself
        return
    noted = app.files.find_orders().get(job.id)
    if noted == digest(job.spec, job.nodes):
        return
    if noted is None:
        why = "it was not submitted from this machine"
    elif noted == ENDED:
        why = "this machine has seen it end"
    else:
        why = "its record is not that of the job that this machine submitted"
    raise ClusterError(
        f"job {job.id} is not continued: {why}",
        hint=f"cluster up on the machine that submitted it; or cluster stop {job.id}, which ends it",
    )
