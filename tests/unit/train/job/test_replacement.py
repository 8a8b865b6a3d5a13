"""The nodes that a job has lost, and its order on another head."""

from typing import Any

import pytest

from foundation.errors import ClusterError
from node.protocol import Attempt, JobHost, Order, Record
from train.job.config import TrainConfig
from train.job.replacement import (
    check_restarts,
    continue_order,
    continued_config,
    end_attempts,
    find_lost,
    find_orphans,
    find_paths,
)

ENV = f"/home/ubuntu/.cluster/env/{'e' * 64}/bin/python"
TREE, PROJECT, OTHER = "a" * 64, "b" * 64, "c" * 64
HOSTS = (
    JobHost(name="node-0", ip="10.0.0.10", workers=1, servers=1, instance_id="i-0"),
    JobHost(name="node-1", ip="10.0.0.11", workers=1, servers=1, instance_id="i-1"),
)


class FakeHost:
    def __init__(self, name: str, ip: str, instance_id: str) -> None:
        self.name, self.private_ip, self.instance_id = name, ip, instance_id


class FakeNode:
    def __init__(self, name: str, ip: str, instance_id: str) -> None:
        self.host = FakeHost(name, ip, instance_id)


NOW: Any = (FakeNode("node-0", "10.0.0.50", "i-50"), FakeNode("node-1", "10.0.0.11", "i-1"))


def make_record(**values: Any) -> Record:
    defaults: dict[str, Any] = {
        "id": "20300101-000000-abcdef",
        "name": "job",
        "state": "running",
        "workers": 2,
        "servers": 2,
        "submitted_at": 100.0,
        "started_at": 110.0,
        "ended_at": None,
        "exit_code": None,
        "error": None,
        "nodes": HOSTS,
        "python": ENV,
        "command": (ENV, f"/home/ubuntu/.cluster/runtime/{TREE}/train/scripts/train_mnist.py", "--lr", "0.1"),
        "code": TREE,
        "project": PROJECT,
        "script": "train_mnist.py",
        "script_source": "shipped",
        "kv_store": "dist_sync",
        "on_node_loss": "requeue",
        "attempts": (Attempt(number=1, nodes=("node-0", "node-1"), started_at=110.0),),
    }
    return Record(**{**defaults, **values})


def make_order(**values: Any) -> Order:
    defaults: dict[str, Any] = {
        "job": "20300101-000000-abcdef",
        "python": ENV,
        "workers": 2,
        "servers": 2,
        "hosts": HOSTS,
        "command": ("planned",),
        "cwd": "/home/ubuntu",
        "env": {"OMP_NUM_THREADS": "2"},
        "code": TREE,
        "project": PROJECT,
        "secrets": {"AWS_SECRET_ACCESS_KEY": "new"},
    }
    return Order(**{**defaults, **values})


def test_lost_nodes_are_known_by_their_index_and_instance() -> None:
    assert find_lost(make_record(), ["node-1"]) == {1: "i-1"}
    assert find_lost(make_record(), ["node-0", "node-1"]) == {0: "i-0", 1: "i-1"}


@pytest.mark.parametrize(
    ("hosts", "name"),
    [(HOSTS, "node-2"), ((JobHost(name="gpu1", instance_id=""),), "gpu1"), ((JobHost(name="node-0"),), "node-0")],
)
def test_what_is_no_instance_cannot_be_replaced(hosts: tuple[JobHost, ...], name: str) -> None:
    with pytest.raises(ClusterError, match=f"waits for {name}, which is not an instance"):
        find_lost(make_record(nodes=hosts), [name])


def test_a_job_needs_its_environment_and_its_files() -> None:
    assert find_paths(make_record()) == (f"env/{'e' * 64}", f"runtime/{TREE}", f"tree/{PROJECT}")
    assert find_paths(make_record(python="/usr/bin/python3", project=None)) == (f"runtime/{TREE}",)


@pytest.mark.parametrize(
    ("changes", "gone", "is_orphan"),
    [
        ({}, {"i-0"}, True),
        ({"state": "waiting"}, {"i-0", "i-1"}, True),
        ({}, {"i-1"}, False),  # the head is alive and waits itself
        ({}, set(), False),
        ({"state": "done"}, {"i-0"}, False),
        ({"state": "stopped"}, {"i-0"}, False),
        ({"on_node_loss": "fail"}, {"i-0"}, False),
        ({"scheduler": "slurm"}, {"i-0"}, False),
        ({"nodes": ()}, {"i-0"}, False),
    ],
)
def test_a_job_is_orphaned_if_its_head_has_ended_before_it(
    changes: dict[str, Any], gone: set[str], *, is_orphan: bool
) -> None:
    record = make_record(**changes)
    assert find_orphans([record], gone) == ((record,) if is_orphan else ())


QUEUED: dict[str, Any] = {"state": "queued", "attempts": (), "started_at": None}


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
        ([{}, {"state": "done"}, QUEUED], "c"),
        ([{}, {}], "b"),
        ([QUEUED, {}], "b"),
        # Stopped in the queue: it has not had its turn.
        ([{}, {**QUEUED, "state": "stopped"}, QUEUED], "ac"),
        ([{"held_at": 1.0, "state": "stopped", "attempts": ()}, QUEUED], "b"),
        ([{"state": "done"}], ""),
        # A job of another cluster, or of an earlier head.
        ([{}, {"nodes": (JobHost(name="node-0", instance_id="i-9"),), "state": "done"}], "a"),
    ],
)
def test_the_jobs_of_a_lost_head_go_on_in_their_order(jobs: list[dict[str, Any]], names: str) -> None:
    records = [
        make_record(**{"id": f"2030-{number}", "name": "abc"[number], "submitted_at": 100.0 + number, **job})
        for number, job in enumerate(jobs)
    ]
    assert "".join(record.name for record in find_orphans(reversed(records), {"i-0", "i-1"})) == names


def test_the_last_attempt_ends_with_the_head() -> None:
    first = Attempt(number=1, nodes=("node-0",), started_at=1.0, ended_at=5.0, reason="notice", lost=("node-1",))
    second = Attempt(number=2, nodes=("node-0",), started_at=6.0)
    ended = end_attempts(make_record(attempts=(first, second)), ["node-0"], at=9.0)
    assert ended[0] == first
    assert (ended[1].ended_at, ended[1].reason, ended[1].lost, ended[1].error) == (
        9.0,
        "lost",
        ("node-0",),
        "node-0 was lost",
    )


def test_a_record_from_before_the_first_attempt_counts_as_one_unless_the_job_was_queued() -> None:
    [only] = end_attempts(make_record(attempts=(), state="starting"), ["node-0"], at=9.0)
    assert (only.number, only.started_at, only.reason) == (1, 100.0, "lost")
    assert end_attempts(make_record(attempts=(), state="queued"), ["node-0"], at=9.0) == ()


def test_restarts_are_limited() -> None:
    lost = [Attempt(number=number, nodes=("node-0",), started_at=1.0, reason="lost") for number in (1, 2)]
    check_restarts(make_record(), lost, 2)
    with pytest.raises(ClusterError, match=r"lost nodes 2 times, and \[train\] restarts = 1"):
        check_restarts(make_record(), lost, 1)


def test_cluster_toml_is_read_with_what_the_record_says() -> None:
    config = continued_config(TrainConfig(args=("--lr", "9"), queue=True), make_record(name="mine", workers=2))
    assert (config.name, config.workers, config.servers, config.args) == ("mine", 2, 2, ())
    assert (config.hosts, config.kv_store, config.launcher, config.queue) == (
        ("node-0", "node-1"),
        "dist_sync",
        "ssh",
        False,
    )
    local = continued_config(TrainConfig(), make_record(kv_store="local", servers=0, nodes=HOSTS[:1]))
    assert (local.servers, local.hosts) == ("auto", ("node-0",))
    assert (config.subfolder, continued_config(TrainConfig(cwd="b"), make_record(subfolder="a")).subfolder) == ("", "a")


def test_the_order_is_that_of_the_record_on_the_new_hosts() -> None:
    record = make_record(env={"OMP_NUM_THREADS": "4", "COLOUR": "blue", "AWS_REGION": "old", "A (servers)": "1"})
    attempts = end_attempts(record, ["node-0"], at=200.0)

    order, warnings = continue_order(make_order(), record, NOW, attempts, first_process=7)

    assert warnings == ()
    assert order.command == record.command
    assert [(host.name, host.ip, host.instance_id, host.workers, host.servers) for host in order.hosts] == [
        ("node-0", "10.0.0.50", "i-50", 1, 1),
        ("node-1", "10.0.0.11", "i-1", 1, 1),
    ]
    assert order.env == {"OMP_NUM_THREADS": "4", "COLOUR": "blue"}
    assert (order.script_source, order.on_node_loss, order.queue) == ("shipped", "requeue", True)
    assert (order.attempts, order.submitted_at, order.first_process) == (attempts, 100.0, 7)
    assert order.secrets == {"AWS_SECRET_ACCESS_KEY": "new"}


def test_changed_files_and_secrets_are_named() -> None:
    record = make_record(env={"API_TOKEN": "***", "KNOWN_TOKEN": "***", "URL": "https://me:***@host/"})

    order, warnings = continue_order(
        make_order(code=OTHER, env={"KNOWN_TOKEN": "kept"}), record, NOW, (), first_process=0
    )

    assert order.command[1] == f"/home/ubuntu/.cluster/runtime/{OTHER}/train/scripts/train_mnist.py"
    assert order.env == {"KNOWN_TOKEN": "kept"}
    assert "have changed since it was started" in warnings[0]
    assert "the values of API_TOKEN, URL are not in the job's record" in warnings[1]
