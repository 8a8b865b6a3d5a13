"""What the head plans to replace lost nodes: only instances, which accept the head's key."""

import base64
import dataclasses
import gzip
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from bootstrap.ssh.keys import MARK, authorized_line
from foundation.errors import ClusterError
from foundation.progress import silent
from provision.files import ClusterFiles
from provision.lease.config import LeaseConfig
from provision.lease.terms import Lease
from provision.lease.user_data import MAX_BYTES, render_user_data
from provision.model import TAG_NAME, Node
from provision.plan import Plan
from provision.up import prepare_replacement, up
from provision_world import World, make_config

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGhlYWQga2V5IGhlYWQga2V5IGhlYWQga2V5IGhl cluster-internal demo"
LINE = authorized_line(KEY, head_ip="10.0.0.4")
CONFIG = make_config(nodes=3, market=["spot", "on-demand"], instance_profile="auto")


def prepare(world: World, lost: Node) -> Plan:
    request = replace(world.request(CONFIG), from_head=LINE)
    by_index = {lost.index: lost.instance_id}
    return prepare_replacement(world.clients, request=request, files=world.files, lost=by_index)


def test_the_head_only_ends_and_launches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.lease = LeaseConfig(idle="1h")
    before = world.up(CONFIG)
    monkeypatch.setenv("CLUSTER_CHECKIP_URL", "https://127.0.0.1:9/")  # the head's address does not matter
    world.calls.made.clear()
    after = up(prepare(world, before.nodes[1]), clients=world.clients, files=world.files, report=silent)
    assert world.calls.mutating().keys() == {"RunInstances", "TerminateInstances"}
    rehearsed = {name for name in world.calls.made if name.startswith("DryRun")}
    assert rehearsed <= {"DryRunRunInstances", "DryRunTerminateInstances", "DryRunGetConsoleOutput"}
    assert not [name for name in world.calls.made if "Role" in name or "Profile" in name]
    assert [node.index for node in after.nodes] == [0, 1, 2]
    assert after.nodes[1].lease == before.nodes[0].lease
    new = world.sandbox.backend.get_instance(after.nodes[1].instance_id)
    data = base64.b64decode(str(new.user_data))
    assert LINE in gzip.decompress(data).decode()
    assert len(data) <= MAX_BYTES
    old = world.sandbox.backend.get_instance(before.nodes[0].instance_id)
    assert MARK not in gzip.decompress(base64.b64decode(str(old.user_data))).decode()
    assert not prepare(world, before.nodes[1])


def test_the_head_launches_nothing_beside_another_machine(world: World, tmp_path: Path) -> None:
    """The other machine's instance may be the missing node. The head does not make a security group, either."""
    nodes = world.up(CONFIG).nodes
    world.clients.ec2.terminate_instances(InstanceIds=[nodes[1].instance_id])
    up(world.prepare(CONFIG), clients=world.clients, files=world.files, report=silent)
    head = dataclasses.replace(world, files=ClusterFiles(tmp_path / "head"))  # knows only the earlier nodes
    head.files.note_instances(node.instance_id for node in nodes)
    with pytest.raises(ClusterError, match="another machine is adding nodes to cluster demo: i-"):
        prepare(head, nodes[1])
    group = world.describe().security_group
    world.clients.ec2.delete_tags(Resources=[group.group_id], Tags=[{"Key": TAG_NAME}])
    with pytest.raises(ClusterError, match="lacks its security group or key pair"):
        prepare(world, nodes[1])


@pytest.mark.parametrize(
    ("there", "then"),
    [
        ("ssh-ed25519 USER user\n", f"ssh-ed25519 USER user\n{LINE}\n"),
        # Already set up, perhaps by another head: a reboot changes nothing.
        (f"ssh-ed25519 USER user\nrestrict ssh-ed25519 OTHER {MARK}\n", None),
    ],
)
def test_a_new_node_lets_the_head_in_at_its_first_boot(tmp_path: Path, there: str, then: str | None) -> None:
    data = render_user_data(Lease(set_at=1.8e9), cluster="a" * 32, user="ubuntu", authorized=LINE)
    text = gzip.decompress(data).decode()
    begin, end = text.index("\nuser=ubuntu"), text.index("# Makes sshd end")
    keys = tmp_path / ".ssh/authorized_keys"
    keys.parent.mkdir()
    keys.write_text(there)
    (tmp_path / "getent").write_text(f"#!/bin/sh\necho ubuntu:x:1000:1000::{tmp_path}:/bin/bash\n")
    (tmp_path / "getent").chmod(0o755)
    script = f"PATH={tmp_path}:$PATH\n{text[begin:end]}\nwait\n"
    subprocess.run(["bash"], input=script, text=True, check=True, capture_output=True)
    assert keys.read_text() == (there if then is None else then)
