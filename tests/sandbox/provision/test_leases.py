"""Leases on real hosts: whatever happens to the command, nodes and network, no node outlives its deadline."""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest

from ec2_client import client, ids_of, live
from ec2_client import run as launch_instances
from forked import Act, Kill, find_changes, read_descriptions, run
from foundation.progress import silent
from iam_steps import role_keys
from node.lease.ec2 import Ec2
from node.lease.metadata import Role
from node.lease.terms import Lease, parse_lease, render_lease
from project import REPOSITORY, Project, cluster_in, configure
from provision.aws.role_policy import render_role_policy
from provision.config import ProvisionConfig
from provision.lease.config import LeaseConfig
from sandbox import control
from sandbox.place import place_of
from sandbox_steps import REGION, RunningSandbox, Ssh, enter, start_sandbox, wait_for
from waits import until

pytestmark = pytest.mark.sandbox

LATE_S = 60.0
ENDED = re.compile(r'"state": "(terminated|stopped)"')
HEADS = {
    "frozen": "freeze instance={first}",
    "gone": "kill instance={first} leaves=running",
    "cut off": "partition a={first} b={second}",
    "full disk": "full-disk instance={first}",
    "no metadata": "",
}
"""How a head fails: the fault. HEADS_EACH: the number of clusters for each."""
HEADS_EACH = 6


@pytest.fixture(scope="module")
def own_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSandbox]:
    folder = tmp_path_factory.mktemp("leases")
    try:
        yield start_sandbox(folder)
    finally:
        control.reset(folder, report=silent)


def leased(name: str, folder: Path, *, nodes: int = 1, **lease: Any) -> Act:
    return Act(verb="up", name=name, nodes=nodes, files=folder / name, lease=LeaseConfig(**lease))


def find_instances() -> dict[str, tuple[str, str, float]]:
    """Instance id -> cluster, state, deadline."""
    found: dict[str, tuple[str, str, float]] = {}
    for page in boto3.client("ec2").get_paginator("describe_instances").paginate():
        for instance in (one for reservation in page["Reservations"] for one in reservation["Instances"]):
            tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
            lease = parse_lease(tags["cluster:lease"])
            assert lease is not None
            deadline = lease.set_at if lease.until is None else lease.until
            found[instance["InstanceId"]] = (tags["cluster:name"], instance["State"]["Name"], deadline)
    return found


def hosts(name: str) -> list[tuple[str, str]]:
    """Instance ids and private addresses of a cluster's nodes, the head's first."""
    found = boto3.client("ec2").describe_instances(Filters=[{"Name": "tag:cluster:name", "Values": [name]}])
    made = [instance for reservation in found["Reservations"] for instance in reservation["Instances"]]
    made.sort(key=lambda instance: instance["AmiLaunchIndex"])
    return [(instance["InstanceId"], instance.get("PrivateIpAddress", "")) for instance in made]


def is_armed(ssh: Ssh, address: str) -> bool:
    return "lease.sock" in ssh.run(address, "ls /run/cluster", check=False).stdout


def find_ends(project_dir: Path) -> dict[str, float]:
    """The times at which instances ended, by id, from the sandbox's log: calls to EC2 cost CPU time."""
    time.sleep(0.2)  # so does this
    logged = [line for line in place_of(project_dir).state_log.read_text().splitlines() if ENDED.search(line)]
    entries = [json.loads(line) for line in logged]
    return {entry["instance"]: datetime.fromisoformat(entry["time"]).timestamp() for entry in entries}


def wait_for_ends(project_dir: Path, names: Callable[[str], bool]) -> list[str]:
    """Waits for the end of all instances of these clusters; returns those that lived too long, or ended too early."""
    wrong: list[str] = []
    left = {key: (name, deadline) for key, (name, _, deadline) in find_instances().items() if names(name)}
    assert left
    while left:
        now, ends = time.time(), find_ends(project_dir)
        for instance_id, (name, deadline) in sorted(left.items()):
            if instance_id in ends:
                early_s = deadline - ends[instance_id]
                wrong += [f"{name}: {instance_id} ended {early_s:.1f} s early"] if early_s > 0 else []
            elif now > deadline + LATE_S:
                wrong.append(f"{name}: {instance_id} is alive {now - deadline:.0f} s after its deadline")
            else:
                continue
            del left[instance_id]
    return wrong


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "everything"])
def test_up_killed_leaves_nothing_alive_after_the_deadline(
    own_sandbox: RunningSandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    *,
    everything: bool,
) -> None:
    """No other command is run. The kills before the launch leave nothing that runs."""
    enter(own_sandbox, monkeypatch)
    read_descriptions()
    lifetime = "15s"
    points = run(leased(f"whole-{everything}", tmp_path, lifetime=lifetime)).points
    if everything:
        kills = [Kill(point=number, before=before) for number in range(len(points)) for before in (True, False)]
    else:
        launch = find_changes(points).index("RunInstances")
        kills = [Kill(point=launch, before=before, changes=True) for before in (True, False)]
        kills.append(Kill(point=len(find_changes(points)) - 1, before=False, changes=True))
    killed = 0
    for number, kill in enumerate(kills):
        killed += run(leased(f"kill-{everything}-{number}", tmp_path, lifetime=lifetime), kill).killed
    wrong = wait_for_ends(own_sandbox.project_dir, lambda name: name.startswith(("kill-", "whole-")))
    record_property("result", f"{killed} of {len(kills)} killed, {len(find_instances())} nodes, {len(wrong)} alive")
    # A run that polls less often than the counted one ends before a late kill.
    assert killed >= len(kills) * 0.9
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_up_killed_and_its_head_fails(
    own_sandbox: RunningSandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """`up` is killed at random points, and then its head fails in each way: the other node has the role."""
    enter(own_sandbox, monkeypatch)
    read_descriptions()
    ec2, chosen = boto3.client("ec2"), random.Random(20)
    points = run(leased("whole-head", tmp_path, nodes=2, lifetime="45s")).points
    launch = points.index("RunInstances")
    tries, counts = 0, dict.fromkeys(HEADS, 0)
    for head, fault in HEADS.items():
        while counts[head] < HEADS_EACH:
            name, tries = f"head-{tries}", tries + 1
            kill = Kill(point=chosen.randrange(launch, len(points)), before=chosen.random() < 0.5)
            run(leased(name, tmp_path, nodes=2, lifetime="45s"), kill)
            if not hosts(name):
                continue  # killed before its launch
            first, second = (instance_id for instance_id, _ in hosts(name))
            wait_for(ec2, "instance_running", [first, second])
            if head == "no metadata":
                ec2.modify_instance_metadata_options(InstanceId=first, HttpEndpoint="disabled")
            else:
                control.cause_fault(own_sandbox.project_dir, fault.format(first=first, second=second))
            left_s = find_instances()[first][2] - time.time()
            assert left_s > 5, f"{name} failed too late"
            counts[head] += 1
    wrong = wait_for_ends(own_sandbox.project_dir, lambda name: name.startswith(("head-", "whole-head")))
    record_property("result", f"{counts} clusters of 2 nodes, {len(wrong)} nodes alive")
    assert not wrong, "\n".join(wrong)


def test_faults_do_not_keep_nodes_alive(
    own_sandbox: RunningSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, no metadata, a cut network, a killed program, a broken `shutdown`, a frozen and a lost head."""
    enter(own_sandbox, monkeypatch)
    ec2, folder = boto3.client("ec2"), own_sandbox.project_dir

    def cause(fault: str) -> None:
        control.cause_fault(folder, fault)

    for name, then, nodes in (("frozen", "down", 2), ("stops", "stop", 2), ("alone", "down", 1)):
        run(leased(name, tmp_path, lifetime="25s", nodes=nodes, then=then))
        cause(f"freeze instance={hosts(name)[0][0]}")
    run(leased("gone", tmp_path, lifetime="25s", nodes=2))
    cause(f"kill instance={hosts('gone')[0][0]} leaves=running")
    run(leased("faults", tmp_path, lifetime="60s", nodes=5))
    full, dumb, cut, orphan, broken = hosts("faults")
    ssh = Ssh(key=tmp_path / "faults" / "id_ed25519")
    ec2.modify_instance_metadata_options(InstanceId=dumb[0], HttpEndpoint="disabled")
    (group,) = ec2.describe_security_groups(GroupNames=["cluster-faults"])["SecurityGroups"]
    ec2.authorize_security_group_ingress(
        GroupId=group["GroupId"], IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="0.0.0.0/0"
    )
    for _, address in (orphan, broken):
        until(partial(is_armed, ssh, address), "the lease program")
    # The program's other process starts it again.
    ssh.run(orphan[1], "sudo kill -9 $(pgrep -f '[l]ease.py boot' | tail -n 1)")
    ssh.run(broken[1], "printf '#!/bin/sh\\nexit 1\\n' | sudo tee /usr/sbin/shutdown /usr/sbin/poweroff >/dev/null")
    for other in (full, dumb, orphan, broken):
        cause(f"partition a={cut[0]} b={other[0]}")
    cause(f"full-disk instance={full[0]}")
    # After a reboot with a full disk, and after one without metadata, the lease is armed again.
    ec2.reboot_instances(InstanceIds=[full[0], dumb[0]])

    # The other nodes have ended the frozen and the lost head, which cannot run a program.
    assert not wait_for_ends(folder, lambda name: name in {"faults", "frozen", "stops", "gone"})
    states = {(name, state) for name, state, _ in find_instances().values() if name in {"frozen", "stops"}}
    assert states == {("frozen", "terminated"), ("stops", "stopped")}
    # A frozen host that is alone is ended by no other node. It ends as soon as it continues.
    (alone,) = hosts("alone")
    assert find_instances()[alone[0]][1] == "running"
    cause(f"thaw instance={alone[0]}")
    thawed = time.time()
    until(lambda: alone[0] in find_ends(folder), "the end of the thawed head")
    assert time.time() - thawed < LATE_S
    assert find_instances()[alone[0]][1] == "terminated"


def test_the_calls_of_the_nodes_role(phantom: RunningSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The role finds and ends only the nodes of its cluster, even with a clock that is wrong by an hour."""
    monkeypatch.setenv("SSL_CERT_FILE", phantom.environment["AWS_CA_BUNDLE"])
    config = ProvisionConfig(instance_type="c5.xlarge", instance_profile="auto")
    policy = render_role_policy(
        config, name="one", region=REGION, data_url=None, results_url=None, replaces_nodes=False
    )
    keys = role_keys(*json.loads(policy)["Statement"])

    def launch(name: str, lease: str) -> str:
        tags = [{"Key": "cluster:name", "Value": name}, {"Key": "cluster:lease", "Value": lease}]
        specification = [{"ResourceType": "instance", "Tags": tags}]
        return ids_of(launch_instances(client("ec2"), TagSpecifications=specification))[0]

    lease = Lease(set_at=1.8e9, until=1.8e9 + 60)
    own, other, foreign = launch("one", render_lease(lease)), launch("one", "damaged"), launch("two", "")
    role = Role(own, REGION, keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"])
    calls = Ec2(phantom.environment["AWS_ENDPOINT_URL"], role)
    calls.ahead_s = -3600.0
    with pytest.raises(OSError, match="RequestExpired"):
        calls.find_others("one")
    assert abs(calls.ahead_s) < 30
    (found,) = calls.find_others("one")
    assert (found.instance_id, found.lease, found.is_spot) == (other, None, False)
    assert calls.find_impaired([other]) == {}
    for act in (calls.terminate, calls.stop, calls.force_to_stop):
        with pytest.raises(PermissionError, match="UnauthorizedOperation"):
            act([foreign])
    calls.force_to_stop([own])
    calls.terminate([other, own])
    assert not calls.find_others("one")
    assert {one["InstanceId"] for one in live(client("ec2"))} == {foreign}


@pytest.mark.slow
def test_an_idle_end_spares_a_node_that_is_merely_cut_off(
    own_sandbox: RunningSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with a login is in use, although it answers no other node. A frozen node is not."""
    enter(own_sandbox, monkeypatch)
    ec2, folder = boto3.client("ec2"), own_sandbox.project_dir
    run(leased("idle", tmp_path, nodes=3, idle="30s"))
    used, frozen, idle = hosts("idle")
    (group,) = ec2.describe_security_groups(GroupNames=["cluster-idle"])["SecurityGroups"]
    ec2.authorize_security_group_ingress(
        GroupId=group["GroupId"], IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="0.0.0.0/0"
    )
    ssh = Ssh(key=tmp_path / "idle" / "id_ed25519")
    until(partial(is_armed, ssh, used[1]), "the lease program")
    with ssh.hold(used[1]):
        control.cause_fault(folder, f"freeze instance={frozen[0]}")
        for other in (frozen, idle):
            control.cause_fault(folder, f"partition a={used[0]} b={other[0]}")
        others = {idle[0], frozen[0]}
        until(lambda: others <= set(find_ends(folder)), "the end of the idle and of the frozen node", timeout_s=120)
        assert find_instances()[used[0]][1] == "running"
    until(lambda: used[0] in find_ends(folder), "the end of the node that is not in use any more", timeout_s=120)
    assert {find_instances()[one[0]][1] for one in (used, frozen, idle)} == {"terminated"}


def test_an_idle_cluster_ends_and_says_so(project: Project) -> None:
    """A running command keeps the cluster. Afterwards it ends, `status` says why, and `down` removes the rest."""
    project.write(configure((REPOSITORY / "cluster.toml").read_text(), framework="none"))
    project.run("up")
    assert "lease  ends after 1h without use" in project.run("status").stdout
    with project.running("exec", "--", "sleep", "45"):
        until(lambda: "is logged in" in project.run("lease").stdout, "the login")
        asked = project.run("lease", "--idle", "1s", code=2).stderr
        assert "in 1s: idle = 1s. Change the lease?" in asked
        changed = json.loads(project.run("lease", "+2h", "--idle", "15s", "--yes", "--json").stdout)
        assert [node["answered"] for node in changed["nodes"]] == [True, True]
        assert 7000 < changed["lease"]["remaining_s"] <= 7200
        time.sleep(25)
        assert json.loads(project.run("status", "--json").stdout)["node_counts"] == {"running": 2}
    # Not with `status`, whose ssh session is a login.
    until(lambda: len(find_ends(project.directory)) == 2, "the end of the lease", timeout_s=130)
    ended = json.loads(project.run("status", "--json").stdout)
    assert (ended["state"], ended["lease_ended"]) == ("ended", "its lease ended it (idle = 15s)")
    shown = project.run("status").stdout
    assert "state  ended: its lease ended it (idle = 15s); cluster down removes what is left, free of charge" in shown
    receipt = json.loads(project.run("down", "--yes", "--json").stdout)
    assert receipt["gone"]
    assert receipt["lease"] == "its lease ended it (idle = 15s)"
    assert receipt["cost_usd"] == 0


CLOUD_INIT = """
pgrep -fc lease.py
sudo cloud-init clean
sudo timeout 100 cloud-init init
cloud-id
pgrep -fc lease.py
sudo grep -c "^#cloud-boothook" /var/lib/cloud/instance/user-data.txt.i
"""


@pytest.mark.slow
def test_debians_cloud_init_runs_the_user_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds IMDSv2 by the host's DMI data. The gzipped boothook starts no second lease, and the first one holds."""
    text = 'name = "leased"\ncloud = "sandbox"\n[provision]\nnodes = 1\n[bootstrap]\nframework = "none"\n[lease]\n'
    with cluster_in(tmp_path, f'{text}lifetime = "150s"\n') as project:
        info = control.find_required(tmp_path)
        enter(RunningSandbox(project_dir=tmp_path, info=info, environment=control.environment(info)), monkeypatch)
        project.run("sandbox", "install", "cloud-init")
        found = project.run("ssh", "node-0", CLOUD_INIT).stdout.splitlines()
        assert "aws" in found, found
        assert found[0] == found[found.index("aws") + 1]  # no second lease
        [(instance, (_, _, deadline))] = find_instances().items()
        until(lambda: instance in find_ends(project.directory), "the node lives", timeout_s=240)
        assert 0 <= find_ends(project.directory)[instance] - deadline < LATE_S
