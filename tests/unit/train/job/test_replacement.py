"""The nodes that a job has lost, and its order on another head."""

from typing import Any

import pytest
from msgspec.structs import replace

from foundation.errors import ClusterError, ConfigError
from job_forms import make_record as record_of
from job_world import OWN_SCRIPT, SCRIPT, cpus, plan, with_files
from node.protocol import Attempt, JobHost, Record
from train.job.config import TrainConfig
from train.job.lost_nodes import (
    check_restarts,
    continue_order,
    end_attempts,
    find_lost,
    find_orphans,
    have_files_changed,
    restore_config,
)

HOSTS = (
    JobHost(name="node-0", ip="10.0.0.10", workers=1, servers=1, instance_id="i-0"),
    JobHost(name="node-1", ip="10.0.0.11", workers=1, servers=1, instance_id="i-1"),
)


def make_record(**values: Any) -> Record:
    defaults: dict[str, Any] = {
        "job": "20300101-000000-abcdef",
        "name": "job",
        "state": "running",
        "workers": 2,
        "servers": 2,
        "submitted_at": 100.0,
        "nodes": HOSTS,
        "on_node_loss": "requeue",
        "attempts": (Attempt(number=1, nodes=("node-0", "node-1"), started_at=110.0),),
    }
    return record_of(**{**defaults, **values})


@pytest.mark.parametrize(
    ("hosts", "name"),
    [(HOSTS, "node-2"), ((JobHost(name="gpu1", instance_id=""),), "gpu1"), ((JobHost(name="node-0"),), "node-0")],
)
def test_what_is_no_instance_cannot_be_replaced(hosts: tuple[JobHost, ...], name: str) -> None:
    with pytest.raises(ClusterError, match=f"waits for {name}, which is not an instance"):
        find_lost(make_record(nodes=hosts), [name])


QUEUED: dict[str, Any] = {"state": "queued", "attempts": ()}


@pytest.mark.parametrize(
    ("jobs", "names"),
    [
        ([], ""),
        # A job that ran, and the jobs that waited for it, in the order of submission.
        ([{}, QUEUED, QUEUED], "abc"),
        ([{"state": "waiting"}, {**QUEUED, "on_node_loss": "fail"}], "ab"),
        ([{"on_node_loss": "fail"}, QUEUED], "b"),  # the first one failed with its head
        ([{"scheduler": "slurm"}, QUEUED, {**QUEUED, "scheduler": "slurm"}], "b"),
        # The copy of a job is out of date if a later job has had its turn.
        ([{}, {"state": "done"}], ""),
        ([QUEUED, {}], "b"),
        # Stopped in the queue: it has not had its turn.
        ([{}, {**QUEUED, "state": "stopped"}, QUEUED], "ac"),
        ([{"held_at": 1.0, "state": "stopped", "attempts": ()}, QUEUED], "b"),
        # Notebooks run beside it, and end with their head.
        ([{}, {"beside": True, "on_node_loss": "fail"}, QUEUED], "ac"),
        ([{}, {"beside": True, "state": "done"}], "a"),
        # A job of another cluster, or of an earlier head.
        ([{}, {"nodes": (JobHost(name="node-0", instance_id="i-9"),), "state": "done"}], "a"),
    ],
)
def test_the_jobs_of_a_lost_head_go_on_in_their_order(jobs: list[dict[str, Any]], names: str) -> None:
    records = [
        make_record(**{"job": f"2030-{number}", "name": "abc"[number], "submitted_at": 100.0 + number, **job})
        for number, job in enumerate(jobs)
    ]
    assert "".join(record.name for record in find_orphans(reversed(records), {"i-0", "i-1"})) == names


def test_the_last_attempt_ends_with_the_head() -> None:
    first = Attempt(number=1, nodes=("node-0",), started_at=1.0, ended_at=5.0, reason="notice", lost=("node-1",))
    second = Attempt(number=2, nodes=("node-0",), started_at=6.0)
    ended = end_attempts(make_record(attempts=(first, second)), ["node-0"], at=9.0)
    assert ended[0] == first
    assert ended[1] == replace(second, ended_at=9.0, reason="lost", lost=("node-0",), error="node-0 was lost")
    hosts = tuple(replace(host, usd_per_hour=3.0) for host in HOSTS)
    priced = end_attempts(make_record(attempts=(second,), nodes=hosts), ["node-0"], at=3606.0)
    assert priced[0].cost_usd == 6.0
    [ahead] = end_attempts(make_record(attempts=(second,)), ["node-0"], at=5.0)  # by the clock of S3
    assert ahead.ended_at == 6.0


def test_a_record_from_before_the_first_attempt_counts_as_one_unless_the_job_was_queued() -> None:
    [only] = end_attempts(make_record(attempts=(), state="starting"), ["node-0"], at=9.0)
    assert (only.number, only.started_at, only.reason) == (1, 100.0, "lost")
    assert end_attempts(make_record(attempts=(), state="queued"), ["node-0"], at=9.0) == ()


def test_restarts_are_limited() -> None:
    lost = [Attempt(number=number, nodes=("node-0",), started_at=1.0, reason="lost") for number in (1, 2)]
    check_restarts(make_record(), lost, 2)
    with pytest.raises(ClusterError, match=r"lost nodes 2 times, and \[train\] restarts = 1"):
        check_restarts(make_record(), lost, 1)


@pytest.mark.parametrize(
    ("script", "command"), [(OWN_SCRIPT, ()), (SCRIPT, ()), (SCRIPT, ("python", "x.py", "--lr", "0.1"))]
)
@pytest.mark.parametrize(
    "keys",
    [
        {"args": ("--lr", "0.1"), "hosts": ("node-1", "node-2")},
        {"launcher": "mpi", "kv_store": "none", "processes": 2, "nodes": 2, "hosts": ()},
        {"launcher": "mpi", "kv_store": "none", "workers": 5, "hosts": ("node-1", "node-2")},
        {"processes": 2},
        {"kv_store": "local", "hosts": ("node-1",), "cwd": "my", "sync_dst_dir": "~/job", "setup": ("make",)},
        {"env": {"A": "1"}, "env_worker": {"URL": "x"}, "max_duration": "2h", "on_node_loss": "requeue", "queue": True},
    ],
)
def test_a_job_on_another_head_is_its_spec(keys: dict[str, Any], script: str, command: tuple[str, ...]) -> None:
    """The same words run in the same places, at the new addresses."""
    nodes = with_files(cpus(3))
    first = plan(TrainConfig(**keys), nodes, script=script, command=command).order
    moved = [replace(one, host=replace(one.host, private_ip=f"10.9.0.{at}")) for at, one in enumerate(nodes)]
    restored, warnings = restore_config(TrainConfig(args=("other",), cwd="other"), first.spec)
    again = plan(restored, moved, script=script, command=first.spec.typed_command).order
    record = make_record(selection=first.spec.selection)
    order = continue_order(again, record, ())
    assert warnings == ()
    assert replace(order.spec, train=replace(order.train, queue=first.train.queue)) == first.spec
    assert [(host.name, host.workers, host.servers) for host in order.hosts] == [
        (host.name, host.workers, host.servers) for host in first.hosts
    ]
    assert {host.ip for host in order.hosts} <= {one.host.private_ip for one in moved}
    assert (order.env, order.train.queue) == (first.env, True)
    assert order.submitted_at == 100.0
    assert not have_files_changed(order.spec, first.spec)
    assert have_files_changed(order.spec, replace(first.spec, code="other"))


def test_secrets_come_from_cluster_toml() -> None:
    """As do restarts, so that the user can allow more."""
    env = {"API_TOKEN": "hush", "KNOWN_TOKEN": "hush", "URL": "https://me:hush@host/", "PLAIN": "1"}
    spec = plan(TrainConfig(env=env, env_worker={"A_KEY": "hush"}), 2).order.spec
    assert "hush" not in str(spec)
    now = TrainConfig(env={"KNOWN_TOKEN": "now", "PLAIN": "2"}, env_worker={"A_KEY": "now"}, restarts=9)
    restored, warnings = restore_config(now, spec)
    assert (restored.env, restored.env_worker) == ({"PLAIN": "1", "KNOWN_TOKEN": "now"}, {"A_KEY": "now"})
    assert restored.restarts == 9
    assert warnings[0].startswith("the values of API_TOKEN, URL are not in the job's record")


def test_a_forged_spec_is_checked_as_cluster_toml_is() -> None:
    spec = make_record(cwd="/", launcher="nonesuch").spec
    with pytest.raises(ConfigError, match="launcher"):
        restore_config(TrainConfig(), spec)
