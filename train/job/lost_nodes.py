"""Finds the nodes that a job has lost, and what it needs on the nodes that replace them. Pure.

A job whose head is lost is its spec, in its record in S3, submitted again.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import structs, to_builtins

from bootstrap.apply import ReadyNode
from foundation.errors import ClusterError
from foundation.remote_command import HIDDEN
from foundation.settings import check
from node.job.cost import cost_of
from node.protocol import LOSSES, Attempt, JobHost, JobSpec, Order, Record
from node.train_settings import ENVIRONMENTS
from train.job.config import TrainConfig
from train.job.placement import describe_host

_NODE = re.compile(r"node-([0-9]{1,4})")
_ENVIRONMENT = re.compile(r"/\.cluster/(env/[0-9a-f]{64})/bin/python")


def find_lost(record: Record, names: Sequence[str]) -> dict[int, str]:
    """The instances of a job's hosts with these names: index -> instance id. Raises ClusterError for other hosts."""
    hosts = {host.name: host for host in record.nodes}
    lost = {}
    for name in names:
        host, found = hosts.get(name), _NODE.fullmatch(name)
        if host is None or found is None or not host.instance_id:
            raise ClusterError(
                f"job {record.id} waits for {name}, which is not an instance of this cluster",
                hint=f"make it reachable again, or: cluster stop {record.id}",
            )
        lost[int(found[1])] = host.instance_id
    return lost


def plan_hosts(
    record: Record, nodes: Sequence[ReadyNode], names: Sequence[str], prices: Mapping[str, float]
) -> tuple[JobHost, ...]:
    """The current hosts with these names, for the job. Raises ClusterError if one has not been replaced.

    prices: US dollars per hour by instance id, as far as they are known.
    """
    found = {node.host.name: node for node in nodes}
    before = {host.name: host.instance_id for host in record.nodes}
    missing = [name for name in names if name not in found or found[name].host.instance_id == before.get(name)]
    if missing:
        raise ClusterError(
            f"job {record.id} still waits for {', '.join(missing)}: there was no capacity for a new node",
            hint="cluster up",
        )
    return tuple(describe_host(found[name], prices) for name in names)


def find_paths(record: Record) -> tuple[str, ...]:
    """The folders below ~/.cluster that the job's processes use: its environment, its runtime, and its own files."""
    environment = _ENVIRONMENT.search(record.spec.python)
    trees = [f"tree/{record.spec.project}"] if record.spec.project else []
    runtime = [f"runtime/{record.spec.code}"] if record.spec.code else []
    return (*([environment[1]] if environment else []), *runtime, *trees)


def check_setup(record: Record, node: ReadyNode) -> None:
    """Raises ClusterError if the new node has run other set-up commands than the job's other nodes."""
    if node.setup != record.spec.setup:
        raise ClusterError(
            f"[bootstrap] setup has changed since job {record.id} was started, so {node.host.name} differs from the "
            "nodes that the job knows",
            hint=f"restore [bootstrap] setup in cluster.toml and run the command again, or: cluster stop {record.id}",
        )


# -- on another head ---------------------------------------------------------------------------------------------------


def find_orphans(records: Iterable[Record], gone: Collection[str]) -> tuple[Record, ...]:
    """The jobs that had not ended when their head was lost, and are to continue: the one that ran, then those queued.

    Not notebooks, which run beside them. records: those in S3. gone: ids of this cluster's instances that have ended.
    """
    ours = [one for one in records if one.nodes and one.nodes[0].instance_id in gone and not one.spec.beside]
    ours.sort(key=lambda record: (record.submitted_at, record.id))
    begun = [index for index, record in enumerate(ours) if record.state != "queued" and _had_its_turn(record)]
    # One job runs at a time: an older one has ended, even if its copy in S3 does not say so.
    ours = ours[begun[-1] :] if begun else ours
    return tuple(
        record
        for record in ours
        if not record.has_ended
        and record.spec.scheduler is None
        and (record.state == "queued" or record.spec.train.on_node_loss == "requeue")
    )


def _had_its_turn(record: Record) -> bool:
    """Whether a job has run; one that was stopped while it was queued has not."""
    return not record.has_ended or record.held_at is not None or bool(record.attempts)


def end_attempts(record: Record, lost: Sequence[str], *, at: float) -> tuple[Attempt, ...]:
    """A job's attempts, after the last one has ended with its head, at about `at`. lost: names of nodes."""
    head = record.nodes[0].name
    attempts = record.attempts
    if not attempts and record.state not in ("queued", "pending"):
        # The first copy of the record is written before the first attempt starts.
        first = Attempt(number=1, nodes=tuple(host.name for host in record.nodes), started_at=record.submitted_at)
        attempts = (first,)

    def end(attempt: Attempt) -> Attempt:
        until = max(at, attempt.started_at)
        ended = structs.replace(attempt, ended_at=until, error=f"{head} was lost", reason="lost", lost=tuple(lost))
        return structs.replace(ended, cost_usd=cost_of(record.nodes, until - attempt.started_at))

    return tuple(attempt if attempt.ended_at is not None else end(attempt) for attempt in attempts)


def check_restarts(record: Record, attempts: Iterable[Attempt], restarts: int) -> None:
    """Raises ClusterError if a job has lost nodes more often than [train] restarts allows."""
    times = sum(attempt.reason in LOSSES for attempt in attempts)
    if times > restarts:
        raise ClusterError(
            f"job {record.id} has lost nodes {times} times, and [train] restarts = {restarts}",
            hint="raise [train] restarts in cluster.toml to let it continue",
        )


def restore_config(config: TrainConfig, spec: JobSpec) -> tuple[TrainConfig, tuple[str, ...]]:
    """[train] of a job that continues, and warnings. Raises ConfigError for a forged spec.

    It is that of the spec. From `config`, the current [train], come restarts, and the values that may be secrets.
    """
    table, lost = to_builtins(spec.train), []
    for key in ENVIRONMENTS:
        present: dict[str, str] = getattr(config, key)
        masked = [name for name, value in table[key].items() if HIDDEN in value]
        lost += [name for name in masked if name not in present]
        kept = {name: value for name, value in table[key].items() if name not in masked}
        table[key] = {**kept, **{name: present[name] for name in masked if name in present}}
    table |= {"queue": True, "restarts": config.restarts}
    warning = (
        f"the values of {', '.join(sorted(lost))} are not in the job's record, because they may be secrets: set them "
        "in [train] env if the job needs them"
    )
    return check(TrainConfig, table, source=f"the record of job {spec.id}"), (warning,) if lost else ()


def continue_order(planned: Order, record: Record, attempts: tuple[Attempt, ...]) -> Order:
    """The order of a job that continues. planned: from plan_job with restore_config."""
    return structs.replace(
        planned,
        spec=structs.replace(planned.spec, selection=record.spec.selection),
        attempts=attempts,
        submitted_at=record.submitted_at,
    )


def have_files_changed(planned: JobSpec, spec: JobSpec) -> bool:
    """Whether the files or the packages of a job that continues have changed since it was started."""
    return any(getattr(planned, name) != getattr(spec, name) for name in ("python", "code", "project"))
