"""Checks that a job may be continued from this machine: it was submitted here, or the user agrees.

Whoever can write to [data] results, such as any job, or controls the head, can forge a record. Continuing a job
launches nodes, sends files and creates credentials. So this machine notes the digest of each order that it submits, and
continues only records with a noted digest. For all others, the user decides, within the limits of cluster.toml.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Literal

from msgspec import to_builtins

from cluster.app import App
from foundation.errors import ClusterError
from node.protocol import JobHost, JobSpec, Order, Record
from train.engines import ENGINES
from train.job.payload import shipped_scripts
from train.job.reading import find_scope
from train.job.replacement import restore_config

ENDED = "ended"
"""Noted in place of the digest when this machine has seen the job end: its record no longer continues anything."""
_NODE = re.compile(r"node-([0-9]{1,4})")
_SHOWN = 500


def digest(spec: JobSpec, nodes: Sequence[JobHost]) -> str:
    """Returns the digest of what was ordered: not of the instances and addresses of its nodes."""
    hosts = [(host.name, host.workers, host.servers, host.place is not None) for host in nodes]
    return hashlib.sha256(json.dumps([to_builtins(spec), hosts], sort_keys=True).encode()).hexdigest()


def is_noted(record: Record, orders: Mapping[str, str]) -> bool:
    """Whether this machine has submitted the job of this record. orders: the noted digests, by job."""
    return orders.get(record.id) == digest(record.spec, record.nodes)


def find_objection(record: Record, *, nodes: int, orders: Mapping[str, str], scripts: tuple[str, ...]) -> str | None:
    """Returns why a job of another machine cannot even be offered to the user; None if it can.

    nodes: [provision] nodes. orders: see is_noted. scripts: the names of the scripts that ship with this project.
    """
    noted = orders.get(record.id)
    if noted == ENDED:
        return "this machine has seen it end"
    if noted is not None:
        return "its record is not that of the job that this machine submitted"
    spec = record.spec
    if spec.train.launcher not in ENGINES:
        return f'its launcher "{spec.train.launcher}" is unknown'
    for host in record.nodes:
        found = _NODE.fullmatch(host.name)
        if host.place is not None or found is None or int(found[1]) >= nodes:
            return f"it needs {host.name}, and [provision] nodes = {nodes}"
    script = spec.script if spec.script not in scripts else None
    for what, path in ((f"its script {script} is", script or ""), (f"its folder {spec.train.cwd} is", spec.train.cwd)):
        if path.startswith("/") or ".." in PurePosixPath(path).parts:
            return f"{what} outside of the folder of cluster.toml"
    return None


def name_files(spec: JobSpec, sync: Sequence[str] | Literal["auto"]) -> str:
    """Names the files that continuing a job would send. sync: [bootstrap] sync. Pure."""
    if sync != "auto":
        return f"[bootstrap] sync, {spec.script}" if spec.script else "[bootstrap] sync"
    if spec.script is None or not spec.train.subfolder:
        return "the files in the folder of cluster.toml"
    return f"the files beside {spec.script} and in {spec.train.subfolder}"


def render_offer(spec: JobSpec, *, files: str, urls: tuple[str, ...], launched: tuple[str, ...], kind: str) -> str:
    """Describes what continuing a job of another machine would do, for the question. Pure.

    files: what would be sent. urls: the S3 folders that the job would have access to. launched: the names of the nodes
    to launch, of the instance type `kind`.
    """
    words = spec.typed_command or ("python", spec.train.script, *spec.train.args)
    command = "; ".join((*spec.train.setup, " ".join(words)))
    return "\n".join(
        (
            f"job {spec.id} ({spec.name}) was not submitted from this machine. To continue it would",
            f"  run      {command if len(command) <= _SHOWN else f'{command[:_SHOWN]}...'}",
            f"  send     {files}",
            f"  access   {', '.join(urls) or 'nothing in S3'}",
            f"  launch   {', '.join(launched) or 'no node'}{f' ({kind})' if launched else ''}",
        )
    )


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
    train, _ = restore_config(config.train, job.spec)
    scope = find_scope(train, config.data, command=job.spec.typed_command)
    urls = (scope.data_url, scope.results_url, *scope.also_read, *scope.also_written, *scope.read_secretly)
    app.say(
        render_offer(
            job.spec,
            files=name_files(job.spec, config.bootstrap.sync),
            urls=tuple(url for url in urls if url is not None),
            launched=tuple(names),
            kind=config.provision.instance_type,
        )
    )
    if not app.confirm(f"Continue job {job.id}?", yes=False):
        raise ClusterError(f"job {job.id} is not continued", hint=f"cluster stop {job.id} ends it")
