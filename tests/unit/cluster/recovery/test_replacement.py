"""A job's nodes that do not answer are launched once more, and then terminated."""

from pathlib import Path

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
    """EC2, where these nodes do not answer after each launch. Notes which instances are replaced, and which end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *silent: str) -> None:
        self.silent, self.lost, self.ended = silent, list[str](), list[str]()
        self.ids = {index: f"i-{index}" for index in range(3)}
        for name in ("launch", "find_silent", "end_nodes"):
            monkeypatch.setattr(replacement, name, getattr(self, name))

    def launch(self, _app: App, lost: dict[int, str], _job: Record) -> ClusterState:
        self.ids |= {index: f"{old}-new" for index, old in lost.items() if self.ids[index] == old}
        self.lost.append(" ".join(lost.values()))
        return make_state(*(make_node(index, instance_id=found) for index, found in self.ids.items()))

    def find_silent(self, _app: App, _job: Record, _state: ClusterState) -> dict[str, ConnectError]:
        return {name: ConnectError(f"{name} is silent") for name in self.silent[len(self.lost) - 1].split()}

    def end_nodes(self, _app: App, nodes: list[Node]) -> None:
        self.ended += [node.instance_id for node in nodes]


@pytest.fixture
def app(tmp_path: Path) -> App:
    (tmp_path / "cluster.toml").write_text('name = "demo"\n')
    return App(config_path=tmp_path / "cluster.toml")


@pytest.mark.parametrize(
    ("index", "silent", "lost"),
    [
        (1, [""], ["i-1"]),
        (1, ["node-1", ""], ["i-1", "i-1-new"]),
        (1, ["node-2", ""], ["i-1", "i-1 i-2"]),  # it ran before
        (0, ["node-0", ""], ["i-0", "i-0-new"]),  # a new head for the job of a lost one
    ],
)
def test_nodes_that_do_not_answer_are_launched_again(
    app: App, monkeypatch: pytest.MonkeyPatch, index: int, silent: list[str], lost: list[str]
) -> None:
    ec2 = Ec2(monkeypatch, *silent)
    replacement.launch_until_they_answer(app, JOB, {index: f"i-{index}"}, lambda _: None)
    assert (ec2.lost, ec2.ended) == (lost, [])


@pytest.mark.parametrize(
    ("silent", "ended", "said"),
    [
        (["node-1", "node-1"], ["i-1-new-new"], "waits for node-1: no answer after a second launch, and terminated"),
        (["node-0 node-2"], [], "node-0 is silent"),  # it has the job, and perhaps this machine's network is down
    ],
)
def test_when_launches_are_given_up(
    app: App, monkeypatch: pytest.MonkeyPatch, silent: list[str], ended: list[str], said: str
) -> None:
    ec2 = Ec2(monkeypatch, *silent)
    with pytest.raises(ClusterError, match=said):
        replacement.launch_until_they_answer(app, JOB, {1: "i-1"}, lambda _: None)
    assert ec2.ended == ended
