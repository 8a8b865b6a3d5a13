"""Leases on real hosts: whatever happens to the command, the nodes and the network, no node outlives its deadline.

A host that is frozen, or whose kernel is gone, cannot end itself: it ends when it continues.
"""

import json
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import boto3
import pytest

from ec2_sandbox import control
from ec2_sandbox.paths import paths_of
from foundation.progress import silent
from job_steps import ec2_of
from project import cluster_in
from provision.aws.clients import Clients
from provision.config import ProvisionConfig
from provision.files import ClusterFiles
from provision.lease.config import LeaseConfig
from provision.lease.terms import parse_lease
from provision.plan import Plan, Request
from provision.up import prepare_up, up
from provision.volumes.config import VolumeConfig
from sandbox_steps import REGION, RunningSandbox, Ssh, enter, sandbox_in, wait_for
from waits import until

pytestmark = pytest.mark.sandbox

LATE_S = 60.0
ENDED = re.compile(r'"state": "(terminated|stopped)"')


def launch(name: str, folder: Path, lease: LeaseConfig, *, nodes: int, is_killed: bool = False) -> None:
    """Runs `up` in a process of its own. is_killed: this process ends when EC2 has answered the launch.

    folder: for the cluster's local files.
    """

    def die(http_response: Any, **_: object) -> None:
        if is_killed and http_response.status_code == HTTPStatus.OK:  # not after a dry run
            os.kill(os.getpid(), signal.SIGKILL)

    def carry_out() -> None:
        session = boto3.session.Session(region_name=REGION)
        session.events.register("after-call.ec2.RunInstances", die)
        clients, files = Clients(session, region=REGION), ClusterFiles(folder / name)
        request = Request(
            name=name,
            config=ProvisionConfig(nodes=nodes, ssh_from="203.0.113.7/32", instance_profile="auto"),
            data_url="s3://bucket/digits/",
            volumes=(VolumeConfig(mount="/shared", source="head"),),
            lease=lease,
        )

        def replan(avoid: frozenset[str] = frozenset()) -> Plan:
            return prepare_up(clients, request=request, files=files, avoid=avoid)

        up(replan(), clients=clients, files=files, report=silent, replan=replan)

    process = multiprocessing.get_context("fork").Process(target=carry_out)
    process.start()
    process.join()
    assert process.exitcode == (-signal.SIGKILL if is_killed else 0)


@pytest.fixture(scope="module")
def own_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSandbox]:
    with sandbox_in(tmp_path_factory.mktemp("leases")) as sandbox:
        yield sandbox


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
    return "lock" in ssh.run(address, "ls /run/cluster", check=False).stdout


def find_ends(project_dir: Path) -> dict[str, float]:
    """The times at which instances ended, by id, from the sandbox's log: calls to EC2 cost CPU time."""
    time.sleep(0.2)  # so does this
    logged = [line for line in paths_of(project_dir).state_log.read_text().splitlines() if ENDED.search(line)]
    entries = [json.loads(line) for line in logged]
    return {entry["instance"]: datetime.fromisoformat(entry["time"]).timestamp() for entry in entries}


def wait_for_ends(project_dir: Path, names: Callable[[str], bool], *, but: Collection[str] = ()) -> list[str]:
    """Waits for the end of all instances of these clusters; returns those that lived too long, or ended too early.

    but: instances that cannot end.
    """
    wrong: list[str] = []
    found = find_instances().items()
    left = {key: (name, deadline) for key, (name, _, deadline) in found if names(name) and key not in but}
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


def test_faults_do_not_keep_nodes_alive(
    own_sandbox: RunningSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed `up`, a full disk, no metadata, a cut network, a killed program, a broken `shutdown`, a frozen head."""
    enter(own_sandbox, monkeypatch)
    ec2, folder = boto3.client("ec2"), own_sandbox.project_dir

    def cause(fault: str) -> None:
        control.cause_fault(folder, fault)

    def reach(name: str) -> Ssh:
        """Lets ssh in from everywhere."""
        (group,) = ec2.describe_security_groups(GroupNames=[f"cluster-{name}"])["SecurityGroups"]
        ec2.authorize_security_group_ingress(
            GroupId=group["GroupId"], IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="0.0.0.0/0"
        )
        return Ssh(key=tmp_path / name / "id_ed25519")

    # Where `shutdown` is broken, the end takes 20 s more.
    launch("frozen", tmp_path, LeaseConfig(lifetime="25s", then="stop"), nodes=2)
    (frozen, _), (_, broken) = hosts("frozen")
    ssh = reach("frozen")
    until(partial(is_armed, ssh, broken), "the lease program")
    ssh.run(broken, "printf '#!/bin/sh\\nexit 1\\n' | sudo tee /usr/sbin/shutdown >/dev/null")
    cause(f"freeze instance={frozen}")
    launch("faults", tmp_path, LeaseConfig(lifetime="35s"), nodes=4, is_killed=True)
    full, dumb, cut, orphan = hosts("faults")
    wait_for(ec2, "instance_running", [full[0], dumb[0], cut[0], orphan[0]])
    ec2.modify_instance_metadata_options(InstanceId=dumb[0], HttpEndpoint="disabled")
    ssh = reach("faults")
    until(partial(is_armed, ssh, orphan[1]), "the lease program")
    # The program's other process starts it again.
    ssh.run(orphan[1], "sudo pkill -9 -f '[l]ease.sh loop'")
    for other in (full, dumb, orphan):
        cause(f"partition a={cut[0]} b={other[0]}")
    cause(f"full-disk instance={full[0]}")
    # After a reboot with a full disk, and after one without metadata, the lease is armed again.
    ec2.reboot_instances(InstanceIds=[full[0], dumb[0]])

    # The other nodes end without the frozen head, which ends as soon as it continues.
    assert not wait_for_ends(folder, lambda name: name in {"faults", "frozen"}, but=[frozen])
    assert find_instances()[frozen][1] == "running"
    cause(f"thaw instance={frozen}")
    thawed = time.time()
    until(lambda: frozen in find_ends(folder), "the end of the thawed head")
    assert time.time() - thawed < LATE_S
    assert {state for name, state, _ in find_instances().values() if name == "frozen"} == {"stopped"}


CLOUD_INIT = """
pgrep -fc "lease.sh keep"
sudo cloud-init clean
sudo timeout 100 cloud-init init
cloud-id
pgrep -fc "lease.sh keep"
sudo grep -c "^#cloud-boothook" /var/lib/cloud/instance/user-data.txt.i
"""


@pytest.mark.slow
def test_debians_cloud_init_runs_the_user_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds IMDSv2 by the host's DMI data. The gzipped boothook starts no second lease, and the first one holds."""
    text = 'name = "leased"\ncloud = "sandbox"\n[provision]\nnodes = 1\n[bootstrap]\nframework = "none"\n[lease]\n'
    with cluster_in(tmp_path, f'{text}lifetime = "150s"\n') as project:
        ec2_of(project, monkeypatch)
        project.run("sandbox", "install", "cloud-init")
        found = project.run("ssh", "node-0", CLOUD_INIT).stdout.splitlines()
        assert "aws" in found, found
        assert found[0] == found[found.index("aws") + 1]  # no second lease
        [(instance, (_, _, deadline))] = find_instances().items()
        until(lambda: instance in find_ends(project.directory), "the node lives", timeout_s=240)
        assert 0 <= find_ends(project.directory)[instance] - deadline < LATE_S
