"""`up`, `resize`, `stop`, `start` and `down` in any order, while AWS throttles, loses replies, lags and runs out.

No command creates more nodes than requested. A command that succeeds leaves exactly the requested nodes. After the last
`down`, nothing is left.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from foundation.errors import ClusterError
from provision_world import NAME, Killed, World, make_config, make_lease_config, make_volume

MOST_NODES = 4
ACTIONS = (
    "RunInstances", "TerminateInstances", "CreateSecurityGroup", "ImportKeyPair", "CreatePlacementGroup",
    "AuthorizeSecurityGroupIngress", "DeleteSecurityGroup", "DeleteKeyPair", "DeletePlacementGroup",
    "StopInstances", "StartInstances", "CreateTags", "DescribeInstances",
    "CreateVolume", "AttachVolume", "DeleteVolume", "DescribeVolumes",
)  # fmt: skip
# The errors that a command may report. Any other is a bug.
EXPECTED = (
    "asked for", "without it this machine cannot reach", "cannot be stopped",
    "is stopped", "is stopping", "no cluster demo to resize", "has no nodes",
    "AWS says: Request limit exceeded", "AWS says: An internal error", "no capacity for", "no capacity in any place",
    "ended while starting", "Connection was closed", "cannot be started", "cannot be stopped", "are ending",
    "appeared after the launch", "sufficient",
)  # fmt: skip


class Provisioning(RuleBasedStateMachine):
    world: World
    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    @initialize(delay_s=st.sampled_from([0, 0, 2, 8]), boot_s=st.sampled_from([0, 0, 5]), volume=st.booleans())
    def begin(self, delay_s: int, boot_s: int, *, volume: bool) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.world.reset(self.folder, consistency_delay_s=delay_s, boot_delay_s=boot_s, end_delay_s=boot_s)
        self.world.volumes = (make_volume(),) if volume else ()
        self.world.lease = make_lease_config(lifetime="1d")

    def succeeds(self, command: Callable[..., Any], *arguments: Any) -> bool:
        """Runs a command; returns whether it succeeded. Raises unexpected errors."""
        try:
            command(*arguments)
        except ClusterError as error:
            if not any(words in error.message for words in EXPECTED):
                raise
            return False
        return True

    @rule(nodes=st.integers(1, MOST_NODES), least=st.sampled_from(["all", "all", 1, 2]))
    def up(self, nodes: int, least: Any) -> None:
        self.most = max(self.most, nodes)
        least = least if least == "all" else min(least, nodes)
        if self.succeeds(self.world.up, make_config(nodes=nodes, min_nodes=least, market=["spot", "on-demand"])):
            indices = [node.index for node in self.world.settled().nodes]
            assert len(indices) == len(set(indices))
            assert (nodes if least == "all" else least) <= len(indices) <= nodes
            if least == "all":
                assert indices == list(range(nodes))
            assert self.world.resources()["shared volumes"] == len(self.world.volumes)

    @rule(nodes=st.integers(0, MOST_NODES))
    def resize(self, nodes: int) -> None:
        self.most = max(self.most, nodes)
        if self.succeeds(self.world.resize, make_config(nodes=nodes)):
            assert [node.index for node in self.world.settled().nodes] == list(range(nodes))

    @rule()
    def stop(self) -> None:
        if self.succeeds(self.world.stop):
            assert {node.state for node in self.world.settled().nodes} == {"stopped"}

    @rule()
    def start(self) -> None:
        if self.succeeds(self.world.start):
            assert {node.state for node in self.world.settled().nodes} == {"running"}

    @rule()
    def down(self) -> None:
        if self.succeeds(self.world.down):
            assert not self.world.resources()
            self.most = 0

    @rule(
        verb=st.sampled_from(["up", "resize", "stop", "start", "down"]), point=st.integers(0, 50), before=st.booleans()
    )
    def killed(self, verb: str, point: int, *, before: bool) -> None:
        self.most = max(self.most, 3)
        config = make_config(nodes=3)
        commands: dict[str, Callable[[], Any]] = {
            "up": lambda: self.world.up(config),
            "resize": lambda: self.world.resize(config),
            "stop": self.world.stop,
            "start": self.world.start,
            "down": self.world.down,
        }
        try:
            with self.world.killed_at(point, before=before):
                self.succeeds(commands[verb])
        except Killed:
            pass

    @rule(action=st.sampled_from(ACTIONS), count=st.integers(1, 4))
    def throttle(self, action: str, count: int) -> None:
        self.world.sandbox.book.arm(f"throttle action={action} count={count}")

    @rule(action=st.sampled_from(ACTIONS), kind=st.sampled_from(["lost-reply", "internal-error"]))
    def break_a_call(self, action: str, kind: str) -> None:
        self.world.sandbox.book.arm(f"{kind} action={action}")

    @rule(zone=st.sampled_from(["*", "us-east-1a"]), free=st.integers(0, 3))
    def run_out(self, zone: str, free: int) -> None:
        self.world.sandbox.book.arm(f"capacity zone={zone} free={free}")

    @rule()
    def disarm(self) -> None:
        self.world.sandbox.book.disarm("all")

    @rule(index=st.integers(0, MOST_NODES))
    def lose_a_node(self, index: int) -> None:
        instances = [i for i in self.world.sandbox.backend.sandbox_instances() if i.state == "running"]
        if index < len(instances):
            instances[index].fail_to_boot("hardware")

    @rule()
    def lose_the_files(self) -> None:
        """Once the lists are up to date: before, only the journal knows an interrupted launch."""
        self.world.time.sleep(60)
        shutil.rmtree(self.world.files.root, ignore_errors=True)

    @rule()
    def lose_the_key_pair(self) -> None:
        self.world.sandbox.backend.key_pairs.pop(f"cluster-{NAME}", None)

    @invariant()
    def never_too_many(self) -> None:
        live = sum(
            i.state not in {"terminated", "shutting-down"} for i in self.world.sandbox.backend.sandbox_instances()
        )
        assert live <= self.most
        assert all(
            any(tag["key"] == "cluster:lease" for tag in instance.get_tags())
            for instance in self.world.sandbox.backend.sandbox_instances()
        )
        assert self.world.resources()["shared volumes"] <= len(self.world.volumes)

    def teardown(self) -> None:
        self.world.sandbox.book.disarm("all")
        self.world.time.sleep(60)
        assert self.world.down().leftovers == ()
        assert not self.world.resources()
        assert not self.world.files.root.exists()


@pytest.mark.parametrize("sequences", [2, pytest.param(1000, marks=pytest.mark.slow)])
def test_any_order(world: World, tmp_path: Path, sequences: int) -> None:
    Provisioning.world, Provisioning.folder = world, tmp_path / "machine"
    run_state_machine_as_test(
        Provisioning,
        settings=settings(max_examples=sequences, stateful_step_count=10, suppress_health_check=list(HealthCheck)),
    )
