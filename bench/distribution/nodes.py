"""Sandbox nodes for the benchmarks of bootstrap: their links, their files as seen from this machine, their traffic."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from os import kill
from pathlib import Path
from typing import Any

from bench.provisioning.world import INSTANCE_TYPE, KEY_NAME, World, until
from bench.sandbox import all_pids, in_namespace
from bench.support.command import REPOSITORY, must_run
from ec2_sandbox import control

HOME = "home/ubuntu"
FOLDERS = (".cluster", "star")
AGENT_WORDS = b"module.main()"  # of LOADER in bootstrap/ssh/node_program.py


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchNode:
    """A node. `pid`: this machine's pid of its process 1."""

    name: str
    instance_id: str
    private_ip: str
    public_ip: str
    pid: int

    @property
    def home(self) -> Path:
        """The home of the node's user, as a path on this machine."""
        return Path(f"/proc/{self.pid}/root/{HOME}")

    def size_of(self, pattern: str) -> int:
        """Returns the size in bytes of the file that matches the pattern in the home folder, or 0 if there is none."""
        try:
            return max((path.stat().st_size for path in self.home.glob(pattern)), default=0)
        except FileNotFoundError:
            return 0

    def keep_in_memory(self) -> None:
        """Keeps pushed files in memory, because 16 nodes would share this machine's disk, unlike those of a cluster."""
        owner = self.home.stat().st_uid
        for name in FOLDERS:
            options = f"mode=0700,uid={owner},gid={owner}"
            words = ["nsenter", f"--target={self.pid}", "--mount", "sh", "-c"]
            must_run([*words, f"mkdir /{HOME}/{name} && mount -t tmpfs -o {options} tmpfs /{HOME}/{name}"])

    def wipe(self) -> None:
        """Removes the pushed files."""
        for path in [path for name in FOLDERS for path in (self.home / name).iterdir()]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def link_bytes(self) -> int:
        """Returns the number of bytes that its link has received and sent so far."""
        lines = Path(f"/proc/{self.pid}/net/dev").read_text().splitlines()
        words = next(line.partition(":")[2].split() for line in lines if line.strip().startswith("eth0:"))
        return int(words[0]) + int(words[8])

    def kill_agent(self) -> None:
        """Sends SIGKILL to the agent on the node."""
        namespace = Path(f"/proc/{self.pid}/ns/pid").readlink()
        for pid in (pid for pid in all_pids() if in_namespace(pid, namespace)):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"python" in words[0] and AGENT_WORDS in b"".join(words):
                kill(pid, signal.SIGKILL)


def launch_nodes(world: World, count: int) -> tuple[BenchNode, ...]:
    """Launches nodes and returns them, the head first, when all have booted.

    They are in a security group like a cluster's, and the head can log in to the others.
    """
    world.ec2.authorize_security_group_ingress(
        GroupId=world.default_group,
        IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": world.default_group}]}],
    )
    made = world.ec2.run_instances(
        ImageId=world.image,
        InstanceType=INSTANCE_TYPE,
        MinCount=count,
        MaxCount=count,
        KeyName=KEY_NAME,
        SecurityGroupIds=[world.default_group],
    )
    ids = [instance["InstanceId"] for instance in made["Instances"]]
    until(lambda: set(ids) <= set(world.instances("running")), "the nodes run")
    nodes = find_nodes(world.folder, ids)
    head = nodes[0].home / ".ssh"
    shutil.copy(world.private_key, head / "id_ed25519")
    owner = head.stat()
    shutil.chown(head / "id_ed25519", owner.st_uid, owner.st_gid)
    for node in nodes:
        node.keep_in_memory()
    return nodes


def find_nodes(folder: Path, ids: Sequence[str]) -> tuple[BenchNode, ...]:
    """Returns the nodes of these instances, in the same order."""
    hosts = {host.instance_id: host for host in control.describe(folder).hosts}
    return tuple(
        BenchNode(
            name=f"node-{number}",
            instance_id=each,
            private_ip=hosts[each].private_ip or "",
            public_ip=hosts[each].public_ip or "",
            pid=hosts[each].pid or 0,
        )
        for number, each in enumerate(ids)
    )


def shape(world: World, nodes: Sequence[BenchNode], mbit: float) -> None:
    """Limits the bandwidth of all links; 0 means no limit."""
    for node in nodes:
        control.cause_fault(world.folder, f"link instance={node.instance_id} mbit={mbit:g}")


def ssh_words(world: World) -> list[str]:
    """Returns the options of an ssh or scp command from this machine."""
    options = ["-F", "none", "-i", str(world.private_key), "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]
    return [*options, "-o", f"UserKnownHostsFile={world.folder / 'ssh_known_hosts'}"]


def star(world: World, nodes: Sequence[BenchNode], file: Path) -> float:
    """Sends the file to the head, and from there to all other nodes. Returns the seconds until the last node has it.

    To all nodes at the same time, by the rsync command that dmlc_tracker/ssh.py uses for `launch.py --sync-dst-dir`.
    """
    head, others = nodes[0], nodes[1:]
    for node in nodes:
        node.wipe()
    login = f"ubuntu@{head.public_ip}"
    must_run(["ssh", *ssh_words(world), login, "true"])  # stores its host key
    started = time.perf_counter()
    must_run(["scp", "-q", *ssh_words(world), str(file), f"{login}:star/"])
    ssh = "ssh -o StrictHostKeyChecking=no -o LogLevel=ERROR"
    each = [f"rsync -az --rsh='{ssh} -p 22' star/ {node.private_ip}:star & pids=\"$pids $!\"" for node in others]
    script = "\n".join([*each, "for pid in $pids; do wait $pid || exit 1; done"])
    must_run(["ssh", *ssh_words(world), login, script])
    seconds = time.perf_counter() - started
    check(nodes, f"star/{file.name}", file.stat().st_size)
    return seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushed:
    """The cost of a push: the seconds until the last undisturbed node has the file, and the peak memory in MB.

    busy: the share of this machine's cores that was not idle, from 0 to 1.
    """

    seconds: float
    peak_mb: float
    busy: float


def push(world: World, nodes: Sequence[BenchNode], file: Path, *, victim: BenchNode | None = None) -> Pushed:
    """Runs one distribution in a separate process. `victim`'s agent is killed when it has half of the file."""
    for node in nodes:
        node.wipe()
    order = {
        "key": str(world.private_key),
        "pins": str(world.folder / "pins"),
        "file": str(file),
        "hosts": [[node.name, node.instance_id, node.public_ip, node.private_ip] for node in nodes],
    }
    words = [sys.executable, "-m", "bench.distribution.push", json.dumps(order)]
    before = core_seconds()
    with subprocess.Popen(words, env={**world.env, "PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.PIPE) as process:
        if victim is not None:
            half = file.stat().st_size // 2
            until(lambda: victim.size_of(".cluster/incoming/*") >= half, "half of it is there", 0.005)
            victim.kill_agent()
        assert process.stdout is not None
        message: dict[str, Any] = json.loads(process.stdout.read())
    idle_s, all_s = (now - was for now, was in zip(core_seconds(), before, strict=True))
    lost = {victim.name} if victim is not None else set()
    if set(message["errors"]) != lost:
        sys.exit(f"the push failed: {message['errors']}")
    # The SHA-256 of all files in files/ has been verified.
    check([node for node in nodes if node is not victim], f".cluster/files/*/{file.name}", file.stat().st_size)
    return Pushed(seconds=max(message["done_s"].values()), peak_mb=message["peak_mb"], busy=1 - idle_s / all_s)


def core_seconds() -> tuple[float, float]:
    """Returns the idle time and the total time of all cores since the machine's start, in ticks."""
    words = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return words[3] + words[4], sum(words)


def check(nodes: Sequence[BenchNode], pattern: str, size: int) -> None:
    """Ends the benchmark if a node does not have a file of this size."""
    short = [node.name for node in nodes if node.size_of(pattern) != size]
    if short:
        sys.exit(f"{', '.join(short)}: no {pattern} of {size} bytes")
