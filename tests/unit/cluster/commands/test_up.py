"""What `cluster up` plans beside the head, which launches nodes by itself."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cluster.nodes.ec2
from cluster.commands.up import plan_nodes
from foundation.progress import silent
from provision.files import ClusterFiles, parse_journal
from provision.up import prepare_replacement, up
from provision_world import NAME, World, make_config


def test_up_does_not_launch_what_the_head_has_launched(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(nodes=3)
    nodes = world.up(config).nodes
    world.clients.ec2.terminate_instances(InstanceIds=[nodes[1].instance_id])
    head = replace(world, files=ClusterFiles(tmp_path / "head"))
    head.files.note_instances(node.instance_id for node in nodes)
    wishes = replace(world.wishes(config), from_head="restrict ssh-ed25519 KEY")
    plan = prepare_replacement(head.clients, wishes=wishes, files=head.files, lost={1: nodes[1].instance_id})
    up(plan, clients=head.clients, files=head.files, report=silent)
    monkeypatch.setattr(cluster.nodes.ec2, "ask_for_launches", lambda *_: parse_journal(head.files.journal.read_text()))
    app: Any = SimpleNamespace(files=world.files, config=SimpleNamespace(name=NAME), on_head=None)

    assert not plan_nodes(app, world.clients, world.wishes(config), frozenset())
