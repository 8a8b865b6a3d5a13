"""A job's nodes that do not answer are terminated, and those that others replace are left to them."""

from typing import Any

import pytest
from msgspec import structs

from cluster.app import App
from cluster.recovery import replacement
from foundation.errors import ClusterError, ConnectError
from node.protocol import JobHost, JobSpec, Record
from provision_world import make_node, make_state

JOB = Record(
    spec=JobSpec(id="20300101-000000-abcdef", name="job", workers=3, servers=0), state="waiting", submitted_at=1.0,
    nodes=tuple(JobHost(name=f"node-{index}", ip=f"10.0.0.{index}", instance_id=f"i-{index}") for index in range(3)),
)  # fmt: skip


LAUNCHED = make_state(*(make_node(index, instance_id=f"i-{index}{'-new' * (index == 1)}") for index in range(3)))


@pytest.mark.parametrize(
    ("silent", "expected", "message"),
    [
        (["node-1"], ["i-1-new"], "waits for node-1, which did not answer and is terminated"),
        (["node-1", "node-2"], ["i-1-new", "i-2"], "waits for node-1, node-2, which did not answer and are"),
        (["node-0", "node-2"], [], "node-0 is silent"),  # it has the job, and perhaps this machine's network is down
    ],
)
def test_nodes_that_do_not_answer(
    app: App, monkeypatch: pytest.MonkeyPatch, silent: list[str], expected: list[str], message: str
) -> None:
    ended: list[str] = []
    errors = {name: ConnectError(f"{name} is silent") for name in silent}
    monkeypatch.setattr(replacement, "launch", lambda *_: LAUNCHED)
    monkeypatch.setattr(replacement, "find_silent", lambda *_: errors)
    monkeypatch.setattr(replacement, "end_nodes", lambda _, nodes: ended.extend(node.instance_id for node in nodes))
    app.config_path.write_text('name = "demo"\n')
    with pytest.raises(ClusterError, match=message):
        replacement.launch_for(app, JOB, {1: "i-1"})
    assert ended == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"waiting_for": ("node-0", "node-1")}, "waits for node-0, node-1, its head, to end"),
        ({"waiting_for": ("node-1",), "head_replaces": True}, "waits for node-1, and the head is replacing it itself"),
    ],
)
def test_nodes_that_others_replace(app: App, monkeypatch: pytest.MonkeyPatch, values: Any, message: str) -> None:
    """A head must not replace itself: it would launch one that nobody sets up."""
    monkeypatch.setattr(replacement, "check_consent", lambda *_: None)
    with pytest.raises(ClusterError, match=message):
        replacement.replace_lost(app, structs.replace(JOB, **values))
