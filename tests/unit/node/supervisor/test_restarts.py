"""The next step after an attempt of a job, and its cost: decisions of node/supervisor/attempts/restarts.py."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from fake_timers import Timers, timers
from job_channels import make_order
from job_forms import make_record
from node.job.cost import cost_of, find_cost
from node.protocol import Attempt, EndReason, HostSettings, JobHost, NewFiles, Order
from node.supervisor.attempts import restarts
from node.supervisor.attempts.interruption import MARGIN_S, Interruption, grace_s
from node.supervisor.attempts.restarts import AttemptEnd
from node.wire import Closed, Notice

__all__ = ["timers"]

HOSTS = (
    JobHost(name="node-0", ip="10.0.0.4", instance_id="i-0", workers=1),
    JobHost(name="node-1", ip="10.0.0.5", instance_id="i-1", workers=1),
)
OWN = JobHost(
    name="mine",
    ip="10.0.0.9",
    workers=1,
    own_host=HostSettings(user="me", port=2222, python="python", code_dir="/c", cwd="/", command=("true",)),
)
DONE = AttemptEnd(0, None, "done")
STOPPED = AttemptEnd(130, "stopped", "stopped")
ERROR = AttemptEnd(7, "worker 0 failed", "error")
OVERTIME = AttemptEnd(124, "too long", "overtime")
NOTICE = AttemptEnd(1, "node-1: interrupted", "notice", lost=("node-1",))
STALLED = AttemptEnd(124, "no worker made progress", "stalled")
FULL = AttemptEnd(1, "no space left", "error", final=True)
GONE = {"node-1": [(0, "could not be searched: no answer")]}
STUCK = {"node-0": [(77, "python train.py")]}


def order(**changes: Any) -> Order:
    return make_order(
        workers=2,
        lines=("node-0", "node-1"),
        **{"hosts": HOSTS, "on_node_loss": "requeue", "restarts": 2, "restarts_on_error": 1, **changes},
    )


def before(*reasons: EndReason) -> list[Attempt]:
    return [
        Attempt(number=number, nodes=("node-0", "node-1"), started_at=1.0, ended_at=2.0, reason=reason)
        for number, reason in enumerate(reasons, 1)
    ]


@pytest.mark.parametrize(
    ("ending", "lost", "left", "reasons", "changes", "follows"),
    [
        (DONE, (), {}, (), {}, "end"),
        (STOPPED, (), {}, (), {}, "end"),
        (OVERTIME, (), {}, (), {}, "end"),
        (FULL, ("node-1",), GONE, (), {}, "end"),
        (NOTICE, ("node-1",), {}, (), {}, "wait"),
        (NOTICE, ("node-1",), {}, ("notice", "lost"), {}, "end"),
        (NOTICE, ("node-1",), {}, ("error", "lost"), {}, "wait"),
        (NOTICE, ("node-1",), {}, (), {"restarts": 0}, "end"),
        (ERROR, ("node-1",), GONE, (), {}, "wait"),
        (ERROR, ("node-1",), GONE, (), {"on_node_loss": "fail"}, "end"),
        (ERROR, ("node-1",), {**GONE, **STUCK}, (), {}, "end"),
        (ERROR, (), {}, (), {}, "again"),
        (ERROR, (), {}, ("error",), {}, "end"),
        (ERROR, (), {}, (), {"restarts_on_error": 0}, "end"),
        (ERROR, ("mine",), {}, (), {"hosts": (*HOSTS, OWN)}, "end"),
        (STALLED, (), {}, (), {"restarts_on_error": 0}, "again"),
        (STALLED, (), {}, ("stalled", "lost"), {}, "end"),
    ],
)
def test_what_follows_an_attempt(
    *, ending: AttemptEnd, lost: Any, left: Any, reasons: Any, changes: dict[str, Any], follows: str
) -> None:
    assert restarts.plan_next(order(**changes), ending, lost, left, before(*reasons)) == follows


@pytest.mark.parametrize(
    ("ending", "suspects", "left", "rebooted", "lost"),
    [
        (ERROR, (), {}, (), ()),
        (ERROR, ("node-1",), {}, (), ()),  # the node answers: only the process has failed
        (ERROR, ("node-1",), GONE, (), ("node-1",)),
        (ERROR, (), GONE, (), ()),  # its connection was never lost
        (ERROR, ("node-1",), {}, ("node-1",), ("node-1",)),
        (NOTICE, ("node-0",), {"node-0": [(0, "no answer")]}, (), ("node-0", "node-1")),
    ],
)
def test_which_nodes_are_lost(ending: AttemptEnd, suspects: Any, left: Any, rebooted: Any, lost: Any) -> None:
    assert restarts.find_lost(ending, suspects, left, rebooted) == lost


@pytest.mark.parametrize(
    ("names", "waiting_for", "refused"),
    [
        (("node-1", "node-3"), ("node-1",), None),
        (("node-0",), ("node-1",), "the job does not wait for node-0, but for node-1"),
        (("node-0", "node-1", "x"), ("node-1", "node-2"), "the job does not wait for node-0, x, but for node-1, n"),
    ],
)
def test_which_hosts_are_refused(names: Any, waiting_for: Any, refused: str | None) -> None:
    found = restarts.find_refused([JobHost(name=name, ip="10.0.0.7") for name in names], waiting_for, ("node-3",))
    assert (found is None) if refused is None else (found is not None and found.startswith(refused))


@pytest.mark.parametrize(
    ("done", "resumed", "lost"),
    [
        (
            {"epoch": 9, "batch": 0, "batches": 1 << 30},
            {"epoch": 0, "batch": 0},
            1 << 31,
        ),  # the most that a record holds
        ({"epoch": 2}, {"epoch": 2, "batch": 0}, None),  # a checkpoint with numbers of the program's own
        ({"epoch": 2, "batch": 7}, {"epoch": 2, "batch": 6}, 1),
        ({"epoch": 2, "batch": 7}, {"epoch": 2, "batch": 9}, 0),
        ({"epoch": 2, "batch": 7}, {"epoch": 1, "batch": 90}, None),
        ({"epoch": 2, "batch": 7, "batches": 100}, {"epoch": 1, "batch": 90}, 17),
        ({"epoch": 3, "batch": 0, "batches": 100}, {"epoch": 2, "batch": 100}, 0),
    ],
)
def test_lost_batches(done: Any, resumed: Any, lost: int | None) -> None:
    assert restarts.count_lost_batches(done, resumed) == lost


def test_where_a_worker_continues() -> None:
    assert restarts.parse_resumed("INFO Resumed from epoch 3 batch 17 of s3://b/m") == {"epoch": 3, "batch": 17}
    anew = "INFO No complete checkpoint /tmp/m-*: training begins with epoch 0"
    assert restarts.parse_resumed(anew) == {"epoch": 0, "batch": 0}


@pytest.mark.parametrize(
    ("in_s", "grace", "expected"), [(None, 90, 90), (120, 90, 90), (120, 600, 120 - MARGIN_S), (5, 90, 0), (-20, 90, 0)]
)
def test_a_checkpoint_may_not_take_longer_than_the_node_exists(in_s: Any, grace: int, expected: float) -> None:
    notice = Notice(action="terminate", at=None if in_s is None else 1000.0 + in_s)
    assert grace_s(order(checkpoint_grace=grace), notice, 1000.0) == expected


def test_a_later_notice_does_not_extend_the_time_for_a_checkpoint(timers: Timers) -> None:
    """The first node ends as announced: until then, its files must have been copied."""
    ended: list[Any] = []
    given = order(checkpoint_grace=600)
    notices = Interruption(given, {}, timers, lambda _: None, lambda ending: ended.append(ending.lost))
    for name, in_s in (("node-0", 120), ("node-1", 119)):
        agent: Any = SimpleNamespace(host=JobHost(name=name))
        notices.note_notice(agent, Notice(action="terminate", at=time.time() + in_s))
        timers.wait(60)
    assert ended == [("node-0", "node-1")]


def test_two_nodes_that_end_at_the_same_time_end_the_attempt_once(timers: Timers) -> None:
    told: list[str] = []
    notices = Interruption(order(), {}, timers, told.append, lambda _: None)
    for name in ("node-0", "node-1"):
        agent: Any = SimpleNamespace(host=JobHost(name=name))
        notices.note_notice(agent, Notice(action="terminate", at=time.time() + 30))
    timers.wait(60)
    assert sum("no checkpoint was saved" in text for text in told) == 1


def test_the_error_of_a_job_that_may_not_start_again() -> None:
    assert restarts.explain_end(("node-1",), before()) == "node-1 lost"
    assert restarts.explain_end(("node-1", "node-2"), before("lost", "error", "notice")) == (
        "node-1, node-2 lost, after 2 restarts"
    )


NODE = JobHost(name="node-0", usd_per_hour=1.5)


@pytest.mark.parametrize(
    ("hosts", "usd"),
    [
        ([NODE, JobHost(name="node-1", usd_per_hour=0.5)], 4.0),
        ([NODE, NODE], 3.0),  # a single node
        ([NODE, JobHost(name="node-1")], None),  # an unknown price
        ([NODE, OWN], 3.0),
        ([JobHost(name="node-0", usd_per_hour=0.0)], 0.0),
    ],
)
def test_the_cost_of_hosts(hosts: list[JobHost], usd: float | None) -> None:
    assert cost_of(hosts, 2 * 3600) == usd


def test_a_job_pays_for_its_attempts_and_between_them_for_the_nodes_that_it_keeps() -> None:
    prices = {"node-0": 3600.0, "node-1": 7200.0}
    nodes = tuple(JobHost(name=name, usd_per_hour=price) for name, price in prices.items())
    record = make_record(job="j", name="mine", workers=2, servers=0, state="running", submitted_at=0.0)
    record.nodes = nodes
    assert find_cost(record, 130.0) is None  # it waits for its nodes
    record.held_at = 100.0
    first = Attempt(number=1, nodes=tuple(prices), started_at=100.0, ended_at=110.0, lost=("node-1",), cost_usd=30.0)
    record.attempts = (first,)
    assert find_cost(record, 130.0) == 30.0 + 20.0
    record.attempts = (first, Attempt(number=2, nodes=tuple(prices), started_at=150.0, cost_usd=15.0))
    assert find_cost(record, 155.0) == 30.0 + 40.0 + 15.0
    assert find_cost(record, 160.0) == 30.0 + 40.0 + 30.0  # the cost until now, not until the head last wrote it
    record.attempts = (replace(first, lost=tuple(prices)),)
    assert find_cost(record, 130.0) == 30.0
    record.attempts = (replace(first, cost_usd=None),)
    assert find_cost(record, 130.0) is None


@pytest.mark.parametrize(
    ("unhealthy", "changes", "replaced"),
    [
        (("node-1",), {}, ("node-1",)),
        (("mine", "node-1"), {"hosts": (*HOSTS, OWN)}, ("node-1",)),
        (("node-1",), {"on_node_loss": "fail"}, ()),
    ],
)
def test_which_unhealthy_nodes_are_replaced(unhealthy: Any, changes: dict[str, Any], replaced: Any) -> None:
    assert restarts.find_replaceable(order(**changes), unhealthy) == replaced


def test_files_of_a_lost_agent_may_have_changed_since_they_were_copied() -> None:
    earlier = [NewFiles(host=f"node-{at}", count=1, copied=2) for at in range(3)]
    now = NewFiles(host="node-0", count=0, copied=4)
    assert restarts.merge_files(earlier, {"node-1": None, "node-0": Closed((), now), "node-3": None}) == (
        now,
        NewFiles(host="node-1", count=3),
        earlier[2],  # not of this attempt
    )
