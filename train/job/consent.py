"""Decides whether this machine may continue a job from a record that it has read, in S3 or from the head. Pure.

Whoever can write to [data] results, such as any job, or controls the head, can forge a record. Continuing a job
launches nodes, sends files and creates credentials. So this machine notes the digest of each order that it submits, and
continues only records with a noted digest. For all others, the user decides, within the limits of cluster.toml.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from msgspec import to_builtins

from train.engines import ENGINES
from train.job.protocol import Order, Record
from train.node.job_folder import new_record

ENDED = "ended"
"""Noted in place of the digest when this machine has seen the job end: its record no longer continues anything."""
FIELDS = (
    *("id", "name", "workers", "servers", "selection", "python", "command", "env", "output_url", "launcher"),
    *("scheduler", "setup", "kv_store", "library", "image", "code", "project", "script", "script_source", "owner"),
    *("max_duration_s", "nodes_credentials", "on_node_loss"),
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
    if record.script is not None and record.script not in scripts:
        path = PurePosixPath(record.script)
        if path.is_absolute() or ".." in path.parts:
            return f"its script {record.script} is outside of the folder of cluster.toml"
    return None


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
