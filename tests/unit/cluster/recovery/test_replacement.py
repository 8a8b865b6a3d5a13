"""A job's nodes that do not answer are terminated."""

import pytest

from cluster.app import App
from cluster.recovery import replacement
from foundation.errors import ClusterError, ConnectError
from node.protocol import JobHost, JobSpec, Record
from provision.model import ClusterState, Node
from provision_world import make_node, make_state

JOB = Record(
    spec=JobSpec(id="20300101-000000-abcdef", name="job", workers=3, servers=0), state="waiting", submitted_at=1.0,
    nodes=tuple(JobHost(name=f"node-{index}", ip=f"10.0.0.{index}", instance_id=f"i-{index}") for index in range(3)),
)  # fmt: skip


class Ec2:
    """EC2, where these nodes do not answer after the launch. Notes which instances end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *silent: str) -> None:
        self.silent, self.ended = silent, list[str]()
        for name in ("launch", "find_silent", "end_nodes"):
            monkeypatch.setattr(replacement, name, getattr(self, name))

    def launch(self, _app: App, lost: dict[int, str], _job: Record) -> ClusterState:
        ids = {index: f"i-{index}" for index in range(3)} | {index: f"{old}-new" for index, old in lost.items()}
        return make_state(*(make_node(index, instance_id=found) for index, found in ids.items()))

    def find_silent(self, _app: App, _job: Record, _state: ClusterState) -> dict[str, ConnectError]:
        return {name: ConnectError(f"{name} is silent") for name in self.silent}

    def end_nodes(self, _app: App, nodes: list[Node]) -> None:
        self.ended += [node.instance_id for node in nodes]


@pytest.mark.parametrize(
    ("silent", "ended", "message"),
    [
        (["node-1"], ["i-1-new"], "waits for node-1, which did not answer and is terminated"),
        (["node-1", "node-2"], ["i-1-new", "i-2"], "waits for node-1, node-2, which did not answer and are"),
        (["node-0", "node-2"], [], "node-0 is silent"),  # it has the job, and perhaps this machine's network is down
    ],
)
def test_nodes_that_do_not_answer(
    app: App, monkeypatch: pytest.MonkeyPatch, silent: list[str], ended: list[str], message: str
) -> None:
    app.config_path.write_text('name = "demo"\n')
    ec2 = Ec2(monkeypatch, *silent)
    with pytest.raises(ClusterError, match=message):
        replacement.launch_for(app, JOB, {1: "i-1"})
    assert ec2.ended == ended
