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

from msgspec import structs, to_builtins

from cluster.app import App
from foundation.errors import ClusterError
from node.job_folder import new_record
from node.protocol import Order, Record
from train.engines import ENGINES
from train.job.payload import shipped_scripts
from train.job.reading import find_scope

ENDED = "ended"
"""Noted in place of the digest when this machine has seen the job end: its record no longer continues anything."""
FIELDS = (
    *("id", "name", "workers", "servers", "selection", "python", "command", "env", "output_url", "launcher"),
    *("scheduler", "setup", "kv_store", "library", "image", "code", "project", "script", "script_source", "owner"),
    *("subfolder", "max_duration_s", "nodes_credentials", "on_node_loss"),
)
"""The fields of a record that stay as ordered, as long as the job exists."""
_NODE = re.compile(r"node-([0-9]{1,4})")
_SHOWN = 500


def digest_order(order: Order) -> str:
    """Returns the digest of a job's order, which is also that of each of its records."""
    return digest_record(new_record(order, 0.0))


def digest_record(record: Record) -> str:
    """Returns the digest of what was ordered: not of states, attempts, and the instances and addresses of hosts."""
    hosts = [(host.name, host.workers, host.servers, host.place is not None) for host in record.nodes]
    ordered = {name: getattr(record, name) for name in FIELDS} | {"hosts": hosts}
    return hashlib.sha256(json.dumps(to_builtins(ordered), sort_keys=True).encode()).hexdigest()


def is_noted(record: Record, orders: Mapping[str, str]) -> bool:
    """Whether this machine has submitted the job of this record. orders: the noted digests, by job."""
    return orders.get(record.id) == digest_record(record)


def find_objection(record: Record, *, nodes: int, orders: Mapping[str, str], scripts: tuple[str, ...]) -> str | None:
    """Returns why a job of another machine cannot even be offered to the user; None if it can.

    nodes: [provision] nodes. orders: see is_noted. scripts: the names of the scripts that ship with this project.
    """
    noted = orders.get(record.id)
    if noted == ENDED:
        return "this machine has seen it end"
    if noted is not None:
        return "its record is not that of the job that this machine submitted"
    if record.launcher not in ENGINES:
        return f'its launcher "{record.launcher}" is unknown'
    for host in record.nodes:
        found = _NODE.fullmatch(host.name)
        if host.place is not None or found is None or int(found[1]) >= nodes:
            return f"it needs {host.name}, and [provision] nodes = {nodes}"
    script = record.script if record.script not in scripts else None
    for what, path in (
        (f"its script {script} is", script or ""),
        (f"its folder {record.subfolder} is", record.subfolder),
    ):
        if path.startswith("/") or ".." in PurePosixPath(path).parts:
            return f"{what} outside of the folder of cluster.toml"
    return None


def name_files(record: Record, sync: Sequence[str] | Literal["auto"]) -> str:
    """Names the files that continuing a job would send. sync: [bootstrap] sync. Pure."""
    if sync != "auto":
        return f"[bootstrap] sync, {record.script}" if record.script else "[bootstrap] sync"
    if record.script is None or not record.subfolder:
        return "the files in the folder of cluster.toml"
    return f"the files beside {record.script} and in {record.subfolder}"


def render_offer(record: Record, *, files: str, urls: tuple[str, ...], launched: tuple[str, ...], kind: str) -> str:
    """Describes what continuing a job of another machine would do, for the question. Pure.

    files: what would be sent. urls: the S3 folders that the job would have access to. launched: the names of the nodes
    to launch, of the instance type `kind`.
    """
    command = " ".join(record.command)
    return "\n".join(
        (
            f"job {record.id} ({record.name}) was not submitted from this machine. To continue it would",
            f"  run      {command if len(command) <= _SHOWN else f'{command[:_SHOWN]}...'}",
            f"  send     {files}",
            f"  access   {', '.join(urls) or 'nothing in S3'}",
            f"  launch   {', '.join(launched) or 'no node'}{f' ({kind})' if launched else ''}",
        )
    )


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
            files=name_files(job, config.bootstrap.sync),
            urls=tuple(url for url in urls if url is not None),
            launched=tuple(names),
            kind=config.provision.instance_type,
        )
    )
    if not app.confirm(f"Continue job {job.id}?", yes=False):
        raise ClusterError(f"job {job.id} is not continued", hint=f"cluster stop {job.id} ends it")
