"""`cluster drill spot`: the job and node that it chooses, and what it shows."""

from typing import Any

import pytest
from msgspec.json import encode

from cluster.commands.drill import Times, choose_node, find_drilled, render_drill
from foundation.errors import NotFoundError, UsageError
from job_forms import make_record as convert_record
from node.protocol import Attempt, JobHost, Place, Record
from train.follow.records import JobRecord, read_record

PLACE = Place(user="me", port=22, python="python3", code_dir="/c", cwd="/", command=("x",))
HOSTS = (
    JobHost(name="node-0", instance_id="i-0"),
    JobHost(name="node-1", instance_id="i-1"),
    JobHost(name="node-2", instance_id="i-2"),
    JobHost(name="gpu1", place=PLACE),
)


def make_record(**values: Any) -> Record:
    defaults: dict[str, Any] = {
        "id": "20300101-000000-abcdef",
        "name": "digits",
        "state": "running",
        "workers": 2,
        "servers": 2,
        "submitted_at": 100.0,
        "started_at": 110.0,
        "ended_at": None,
        "exit_code": None,
        "error": None,
        "nodes": HOSTS,
        "python": "python",
        "on_node_loss": "requeue",
        "attempts": (Attempt(number=1, nodes=("node-0",), started_at=1.0, lost_batches=3),),
    }
    return convert_record(**{**defaults, **values})


def read(record: Record) -> JobRecord:
    return read_record(encode(record), source="head")


def test_a_drill_is_for_the_running_job() -> None:
    done = make_record(state="done", id="20290101-000000-abcdef")
    assert find_drilled((read(make_record()), read(done))).id == "20300101-000000-abcdef"
    with pytest.raises(NotFoundError, match="no job is running"):
        find_drilled((read(done),))
    with pytest.raises(NotFoundError, match="is waiting"):
        find_drilled((read(make_record(state="waiting")),))
    with pytest.raises(UsageError, match='on_node_loss is "fail"'):
        find_drilled((read(make_record(on_node_loss="fail")),))


@pytest.mark.parametrize("node", ["node-3", "gpu1"])
def test_other_hosts_are_refused(node: str) -> None:
    with pytest.raises(UsageError, match=f"does not use {node}") as caught:
        choose_node(make_record(), node)
    assert caught.value.hint == "one of: node-0, node-1, node-2"


@pytest.mark.parametrize("node", ["node-0", None])
def test_the_head_is_refused(node: str | None) -> None:
    with pytest.raises(UsageError, match="node-0 is the head"):
        choose_node(make_record(nodes=HOSTS[:1]), node)


def test_what_a_drill_shows() -> None:
    times = Times(say=lambda _: None)
    times.steps = [("notice to node-1 (i-1)", 0.0), ("sshd", 8.25), ("running again", 11.0)]
    silent = render_drill(make_record(), times, number=1).splitlines()
    assert silent[-2:] == ["running again 2.8 s after the new node's sshd", "lost batches: 3"]
    times.steps.append(("training again", 13.5))
    assert render_drill(make_record(), times, number=1).splitlines() == [
        "job 20300101-000000-abcdef (digits): attempt 1 was interrupted, attempt 2 runs",
        "    0.0 s  notice to node-1 (i-1)",
        "    8.2 s  sshd",
        "   11.0 s  running again",
        "   13.5 s  training again",
        "training again 5.2 s after the new node's sshd",
        "lost batches: 3",
    ]
    ended = make_record(state="done", attempts=(Attempt(number=1, nodes=(), started_at=1.0),))
    assert render_drill(ended, Times(say=lambda _: None), number=1).splitlines() == [
        "job 20300101-000000-abcdef (digits): attempt 1 was interrupted, attempt 2 has ended: done",
        "lost batches: unknown",
    ]
