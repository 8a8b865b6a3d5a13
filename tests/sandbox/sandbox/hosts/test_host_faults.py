"""Faults on running hosts and at boot, caused by the command's own function."""

import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from ec2_client import ids_of, run
from ec2_sandbox import control
from ec2_sandbox.errors import SandboxError
from ec2_sandbox.paths import read_arguments
from sandbox_steps import (
    RunningSandbox,
    Ssh,
    answers,
    describe,
    enter,
    find_leftovers,
    launch,
    start_sandbox,
    state_of,
    wait_for,
)
from waits import until

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

pytestmark = pytest.mark.sandbox


def speaks(address: str) -> bool:
    """Whether sshd answers, which it does only while its processes run."""
    try:
        with socket.create_connection((address, 22), timeout=1.0) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


@pytest.fixture
def fault(sandbox: RunningSandbox) -> Iterator[Callable[[str], dict[str, Any]]]:
    yield lambda text: control.cause_fault(sandbox.project_dir, text)
    control.disarm_faults(sandbox.project_dir, "all")


Fault = Callable[[str], dict[str, Any]]


def run_one(**options: Any) -> str:
    return ids_of(run(boto3.client("ec2"), **options))[0]


def checks_of(instance_id: str) -> tuple[str, str]:
    """The results of EC2's checks of the system below an instance, and of the instance."""
    [status] = boto3.client("ec2").describe_instance_status(InstanceIds=[instance_id], IncludeAllInstances=True)[
        "InstanceStatuses"
    ]
    return status["SystemStatus"]["Status"], status["InstanceStatus"]["Status"]


def test_no_boot(fault: Fault, sandbox: RunningSandbox) -> None:
    ec2 = boto3.client("ec2")
    fault("no-boot")
    dead = run_one()
    living = run_one()
    wait_for(ec2, "instance_running", [living])
    assert state_of(ec2, dead) == "pending"
    assert (checks_of(dead), checks_of(living)) == (("ok", "impaired"), ("ok", "ok"))
    assert control.list_faults(sandbox.project_dir) == []
    ec2.terminate_instances(InstanceIds=[dead, living])
    wait_for(ec2, "instance_terminated", [dead, living])


def test_no_sshd(fault: Fault, sandbox: RunningSandbox, ssh: Ssh) -> None:
    ec2 = boto3.client("ec2")
    fault("no-sshd")
    [made] = launch(ssh, 1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((made["PublicIpAddress"], 22), timeout=5.0)
    ec2.reboot_instances(InstanceIds=[made["InstanceId"]])
    until(lambda: answers(made["PublicIpAddress"]), "the fault struck a second time")


def test_kill(fault: Fault, sandbox: RunningSandbox, ssh: Ssh) -> None:
    """EC2 knows that a host has stopped, or still lists it as running."""
    ec2 = boto3.client("ec2")
    [made] = launch(ssh, 1)
    instance_id = made["InstanceId"]
    fault(f"kill instance={instance_id}")
    until(lambda: not answers(made["PrivateIpAddress"]), "it still answers")
    until(lambda: state_of(ec2, instance_id) == "stopped", "it is not stopped")
    assert set(checks_of(instance_id)) == {"not-applicable"}
    ec2.start_instances(InstanceIds=[instance_id])
    wait_for(ec2, "instance_running", [instance_id])
    fault(f"kill instance={instance_id} leaves=running")
    until(lambda: not answers(made["PrivateIpAddress"]), "it still answers")
    assert state_of(ec2, instance_id) == "running"
    assert set(checks_of(instance_id)) == {"impaired"}


def test_freeze_and_thaw(fault: Fault, sandbox: RunningSandbox, pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    address, instance_id = pair[0]["PrivateIpAddress"], pair[0]["InstanceId"]
    count = "while :; do echo >>/tmp/count; sleep 0.05; done"
    ssh.run(address, f"setsid sh -c '{count}' >/dev/null 2>&1 &")

    def counted() -> int:
        return int(ssh.read(address, "wc -l </tmp/count"))

    until(lambda: ssh.run(address, "test -s /tmp/count", check=False).returncode == 0, "nothing is counted")
    assert "processes" in fault(f"freeze instance={instance_id}")["did"]
    assert not answers(address), "a frozen host accepts no connection"
    assert state_of(boto3.client("ec2"), instance_id) == "running"
    assert checks_of(instance_id) == ("ok", "impaired")
    fault(f"thaw instance={instance_id}")
    until(lambda: speaks(address), "it does not continue")
    assert checks_of(instance_id) == ("ok", "ok")
    before = counted()
    until(lambda: counted() > before, "its processes do not continue")
    with pytest.raises(SandboxError, match="not frozen"):
        fault(f"thaw instance={instance_id}")
    ssh.run(address, "pkill -KILL -f '>>/tmp/[c]ount'; rm /tmp/count")


def test_partition_and_heal(fault: Fault, sandbox: RunningSandbox, pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    one, other = pair

    def reaches(source: "InstanceTypeDef", target: "InstanceTypeDef", *, expected: bool = True) -> bool:
        """Whether a connection succeeds; waits longer if it should."""
        command = f"timeout {10 if expected else 1} bash -c 'exec 3<>/dev/tcp/{target['PrivateIpAddress']}/22'"
        return ssh.run(source["PrivateIpAddress"], command, check=False).returncode == 0

    both = f"a={one['InstanceId']} b={other['InstanceId']}"
    assert reaches(one, other)
    assert reaches(other, one)
    open_one = f"exec 3<>/dev/tcp/{other['PrivateIpAddress']}/22; read -r -u 3; touch /tmp/open"
    listen = f"{open_one}; while [ -e /tmp/open ]; do sleep 0.1; done; echo bye >&3; timeout 2 head -c 1 <&3 | wc -c"
    ssh.run(one["PrivateIpAddress"], f"setsid bash -c '{listen}' >/tmp/heard 2>&1 </dev/null &")
    until(lambda: ssh.run(one["PrivateIpAddress"], "test -e /tmp/open", check=False).returncode == 0, "not open")
    fault(f"partition {both}")
    ssh.run(one["PrivateIpAddress"], "rm /tmp/open")
    assert not reaches(one, other, expected=False)
    assert not reaches(other, one, expected=False)
    assert answers(one["PublicIpAddress"]), "only these two cannot reach each other"
    assert until(lambda: ssh.read(one["PrivateIpAddress"], "cat /tmp/heard"), "no end") == "0"
    fault(f"heal {both}")
    assert reaches(one, other)
    with pytest.raises(SandboxError, match="not partitioned"):
        fault(f"heal {both}")


def test_full_disk(fault: Fault, sandbox: RunningSandbox, pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    address, instance_id = pair[0]["PrivateIpAddress"], pair[0]["InstanceId"]
    fault(f"full-disk instance={instance_id}")
    written = ssh.run(address, "dd if=/dev/zero of=/tmp/more bs=64k count=16", check=False)
    assert "No space left on device" in written.stderr
    assert ssh.read(address, "df --output=avail / | tail -n 1") == "0"
    ssh.run(pair[1]["PrivateIpAddress"], "dd if=/dev/zero of=/tmp/more bs=64k count=16")
    fault(f"free-disk instance={instance_id}")
    ssh.run(address, "dd if=/dev/zero of=/tmp/more bs=64k count=16")


def overlimits(project_dir: Path, address: str, ssh: Ssh) -> tuple[int, int]:
    """How often a limit delayed a packet from the host, and to it; -1 if there is no limit."""
    [holder] = [pid for pid in find_leftovers(project_dir).processes if "/bin/sh" in read_arguments(pid)]
    inside = ("nsenter", "--net", "--target", str(holder))
    route = subprocess.run((*inside, "ip", "route", "get", address), capture_output=True, text=True, check=True).stdout
    link = route.split()[2]
    shown = subprocess.run(
        (*inside, "tc", "-s", "qdisc", "show", "dev", link), capture_output=True, text=True, check=True
    ).stdout
    both = (ssh.read(address, "/usr/sbin/tc -s qdisc show dev eth0"), shown)
    counts = [re.search(r"qdisc tbf.*overlimits (\d+)", text, re.DOTALL) for text in both]
    return tuple(int(count.group(1)) if count else -1 for count in counts)  # type: ignore[return-value]


def test_link(fault: Fault, sandbox: RunningSandbox, pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    address, instance_id = pair[0]["PrivateIpAddress"], pair[0]["InstanceId"]
    assert overlimits(sandbox.project_dir, address, ssh) == (-1, -1)
    fault(f"link instance={instance_id} mbit=20")
    before = overlimits(sandbox.project_dir, address, ssh)
    ssh.run(address, "head -c 1000000 /dev/zero")
    ssh.run(address, "cat >/dev/null", stdin="\0" * 1_000_000)
    out, back = overlimits(sandbox.project_dir, address, ssh)
    assert out > before[0] >= 0
    assert back > before[1] >= 0
    assert overlimits(sandbox.project_dir, pair[1]["PrivateIpAddress"], ssh) == (-1, -1)
    fault(f"link instance={instance_id} mbit=0")
    assert overlimits(sandbox.project_dir, address, ssh) == (-1, -1)


@pytest.mark.slow
def test_link_mbit_limits_all_links(own_project: Path, monkeypatch: pytest.MonkeyPatch, ssh: Ssh) -> None:
    enter(start_sandbox(own_project, link_mbit=25.0), monkeypatch)
    [made] = launch(ssh, 1)
    assert min(overlimits(own_project, made["PrivateIpAddress"], ssh)) >= 0
    assert "rate 25Mbit" in ssh.read(made["PrivateIpAddress"], "/usr/sbin/tc qdisc show dev eth0")


def test_spot_notice(fault: Fault, sandbox: RunningSandbox, pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    ec2 = boto3.client("ec2")
    with pytest.raises(SandboxError, match="not a spot instance"):
        fault(f"spot-notice instance={pair[0]['InstanceId']}")
    spot = run_one(KeyName="test", InstanceMarketOptions={"MarketType": "spot"})
    wait_for(ec2, "instance_running", [spot])
    [made] = describe(ec2, [spot])
    look = "curl -s http://169.254.169.254/latest/meta-data/"
    assert "404" in ssh.read(made["PrivateIpAddress"], f"{look}spot/instance-action -o /dev/null -w '%{{http_code}}'")
    fault(f"spot-notice instance={spot} after_s=600")
    assert '"action": "terminate"' in ssh.read(made["PrivateIpAddress"], f"{look}spot/instance-action")
    assert "noticeTime" in ssh.read(made["PrivateIpAddress"], f"{look}events/recommendations/rebalance")
    fault(f"spot-notice instance={spot} after_s=0")
    wait_for(ec2, "instance_terminated", [spot])
    assert describe(ec2, [spot])[0]["StateReason"]["Code"] == "Server.SpotInstanceTermination"
