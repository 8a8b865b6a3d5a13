"""A cluster and one of the user's own hosts: an instance launched by hand, without the cluster's tags.

Its user is neither the nodes' user nor root, and has no sudo. Its sshd listens on another port, behind a jump host.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from job_steps import command_line, namespace_of
from project import REPOSITORY, Project, processes_of
from sandbox import control
from sandbox_steps import RunningSandbox, describe, enter, find_image, wait_for
from waits import until

PORT = 2222


def reread_configuration(*ports: int) -> str:
    """Shell commands for root that make a host's sshd reload its configuration, and wait until it has.

    ports: its new ports, in ascending order, out of 22, 2200 and 2222. The configuration must change them, because the
    commands wait for them. Then they wait for sshd's SIGHUP handler: until sshd sets it, sshd ignores a SIGHUP.
    """
    at_ports = "".join(f":{port} " for port in ports)
    return f"""\
pkill -HUP -o -x sshd
until [ "$(ss -Hltn | grep -oE ':22(00|22)? ' | sort -u | tr -d '\\n')" = '{at_ports}' ]; do sleep 0.05; done
until grep -q '^SigCgt:.*[13579bdf]$' "/proc/$(pgrep -o -x sshd)/status"; do sleep 0.05; done
"""


VPC = "10.0.0.0/8"
PREPARE = f"""
useradd --create-home --shell /bin/bash alice && usermod --password '*' alice
install -d -m 700 -o alice -g alice ~alice/.ssh
printf %s "$(cat ~ubuntu/.ssh/authorized_keys)" >~alice/.ssh/authorized_keys  # its last line does not end
chown alice: ~alice/.ssh/authorized_keys; chmod 600 ~alice/.ssh/authorized_keys
echo Port {PORT} >>/etc/ssh/sshd_config
{reread_configuration(22, PORT)}
"""
WAITS = """
import os, sys, time, mxnet as mx
kv = mx.kv.create("dist_sync")
print("joined", kv.rank, kv.num_workers, sys.executable, os.getcwd(), flush=True)
time.sleep(float(sys.argv[1]))
"""


@dataclass(frozen=True, kw_only=True)
class World:
    """A cluster of one node in `project`, and the host `lab`. `home` is the user's home, with their ssh set-up."""

    project: Project
    home: Path
    instance_id: str
    address: str
    pid: int

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.pid}/root")

    @property
    def authorized_keys(self) -> str:
        return (self.root / "home/alice/.ssh/authorized_keys").read_text()

    @property
    def known_hosts(self) -> Path:
        return self.home / ".ssh" / "known_hosts"

    def head_id(self) -> str:
        """The instance id of node-0."""
        hosts = control.describe(self.project.directory).hosts
        return next(host.instance_id for host in hosts if host.instance_id != self.instance_id)

    def as_root(self, script: str) -> str:
        """Runs a script on lab as root, by sudo of the image's user; returns its output."""
        ssh = self.home / ".ssh"
        options = ("BatchMode=yes", "ConnectTimeout=5", f"UserKnownHostsFile={self.known_hosts}")
        words = [word for option in options for word in ("-o", option)]
        # OpenSSH resolves ~ from the account instead of HOME, so the files are named.
        words += ["-F", str(ssh / "conf.d" / "lab"), "-i", str(ssh / "id_ed25519"), "jump", "sudo sh -eu"]
        done = subprocess.run(["ssh", *words], input=script, check=True, capture_output=True, text=True, timeout=60)
        return done.stdout

    def trust(self) -> None:
        """Accepts both host keys, as the user would when `ssh` asks."""
        key = " ".join((self.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2])
        self.known_hosts.write_text(f"{self.address} {key}\n[{self.address}]:{PORT} {key}\n")

    def processes(self) -> list[int]:
        """The pids of Alice's processes on lab, except ssh sessions."""
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit()
            and namespace_of(int(entry.name)) == namespace_of(self.pid)
            and (words := command_line(int(entry.name)))[:1] not in ([], [""])
            and not words[0].startswith("sshd")
            and int(entry.name) != self.pid
        ]

    def worker(self) -> int:
        """The pid of the worker's own process on lab."""
        found = [
            pid
            for pid, env in processes_of("DMLC_ROLE", "worker").items()
            if env.get("CLUSTER_HOST") == "lab" and command_line(pid)[:1] == ["python"]
        ]
        assert len(found) == 1, found
        return found[0]

    @contextmanager
    def training(self, *words: str, seconds: float = 600) -> Iterator[subprocess.Popen[str]]:
        """Runs `cluster train` on both hosts; the block begins when both workers have joined."""
        command = ("--", "python", "-c", WAITS, str(seconds))
        with self.project.running("train", "-H", "hosts", *words, *command) as process:
            assert process.stdout is not None
            joined = 0
            while joined < 2:
                line = process.stdout.readline()
                assert line, self.project.messages.read_text()
                joined += " joined " in line
            yield process

    def is_quiet(self) -> None:
        """Waits until no process is left on lab."""
        until(lambda: not self.processes(), f"left: {[command_line(p) for p in self.processes()]}", timeout_s=20)


def make_world(directory: Path, monkeypatch: pytest.MonkeyPatch, *, opens: bool = True) -> World:
    """Brings up the cluster, launches the other instance, and prepares its user.

    opens: whether to open the cluster's security group for it, as its user would have to.
    """
    home = directory / "home"
    (home / ".ssh").mkdir(parents=True)
    project = Project(directory, env={"HOME": str(home), "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or cache()})
    project.write((REPOSITORY / "cluster.toml").read_text().replace("nodes = 2", "nodes = 1"))
    (directory / "hosts").write_text("node-0\nalice@lab\n")
    project.run("up")
    info = control.find_running(directory)
    assert info is not None
    enter(RunningSandbox(project_dir=directory, info=info, environment=control.environment(info)), monkeypatch)
    instance_id, address = launch_by_hand(home / ".ssh" / "id_ed25519", opens=opens)
    (home / ".ssh" / "config").write_text(f"Include {home}/.ssh/conf.d/*\n")
    (home / ".ssh" / "conf.d").mkdir()
    (home / ".ssh" / "conf.d" / "lab").write_text(
        f"Host jump\n HostName {address}\n User ubuntu\nHost lab\n HostName {address}\n Port {PORT}\n ProxyJump jump\n"
    )
    pid = next(host.pid for host in control.describe(directory).hosts if host.instance_id == instance_id)
    assert pid is not None
    world = World(project=project, home=home, instance_id=instance_id, address=address, pid=pid)
    world.trust()
    until(lambda: answers(world), "lab does not answer")
    world.as_root(PREPARE)
    return world


def cache() -> str:
    return str(Path.home() / ".cache")


def answers(world: World) -> bool:
    try:
        world.as_root("true")
    except subprocess.CalledProcessError:
        time.sleep(0.2)
        return False
    return True


def launch_by_hand(key: Path, *, opens: bool) -> tuple[str, str]:
    """Launches an instance with its own key and security group; returns its id and its private address."""
    ec2 = boto3.client("ec2")
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)), check=True)
    ec2.import_key_pair(KeyName="mine", PublicKeyMaterial=key.with_suffix(".pub").read_bytes())
    tagged: Any = [{"Name": "tag:cluster:name", "Values": ["demo"]}]
    [ours] = ec2.describe_security_groups(Filters=tagged)["SecurityGroups"]
    [node] = ec2.describe_instances(Filters=tagged)["Reservations"][0]["Instances"]
    own = ec2.create_security_group(GroupName="mine", Description="mine", VpcId=ours["VpcId"])["GroupId"]
    ec2.authorize_security_group_ingress(GroupId=own, IpProtocol="tcp", FromPort=0, ToPort=65535, CidrIp=VPC)
    ec2.authorize_security_group_ingress(GroupId=own, IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="0.0.0.0/0")
    made = ec2.run_instances(
        ImageId=find_image(),
        MinCount=1,
        MaxCount=1,
        KeyName="mine",
        InstanceType="c5.xlarge",
        SecurityGroupIds=[own],
        SubnetId=node["SubnetId"],
    )
    instance_id = made["Instances"][0]["InstanceId"]
    wait_for(ec2, "instance_running", [instance_id])
    address = describe(ec2, [instance_id])[0]["PrivateIpAddress"]
    if opens:
        ec2.authorize_security_group_ingress(
            GroupId=ours["GroupId"], IpProtocol="tcp", FromPort=0, ToPort=65535, CidrIp=f"{address}/32"
        )
    return instance_id, address
