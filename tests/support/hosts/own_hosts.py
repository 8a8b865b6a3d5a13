"""Hosts of the user's own, for cloud = "hosts": instances of a sandbox, launched by hand, and the user's ssh."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import boto3

from ec2_sandbox import control
from project import Project
from sandbox_steps import Ssh, launch, open_ports
from waits import until


@dataclass(frozen=True, kw_only=True)
class OwnHosts:
    """`project` is the user's. The hosts' processes and addresses are by name."""

    project: Project
    ssh: Ssh
    pids: dict[str, int]
    addresses: dict[str, str]

    def root(self, host: str) -> Path:
        return Path(f"/proc/{self.pids[host]}/root")

    def as_root(self, host: str, script: str) -> None:
        self.ssh.run(self.addresses[host], "sudo sh -eu", stdin=script)


def make_own_hosts(
    directory: Path, scripts: Mapping[str, str], *, home: Path | None = None, env: Mapping[str, str] | None = None
) -> OwnHosts:
    """Launches hosts of these names in the running sandbox of a folder, and runs each one's script there, as root.

    The user reaches them by their names, as user ubuntu, with a key and known host keys. home: the user's, by default
    in the folder. env: more variables.
    """
    home = home or directory / "home"
    (home / ".ssh").mkdir(parents=True)
    ssh = Ssh(key=home / ".ssh" / "id_ed25519")
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ssh.key)), check=True)
    made = dict(zip(scripts, launch(ssh, len(scripts)), strict=True))
    open_ports(boto3.client("ec2"), range(65536), "10.0.0.0/8")  # between the hosts, as in a lab's network
    found = {host.instance_id: host.pid or 0 for host in control.describe(directory).hosts}
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    hosts = OwnHosts(
        project=Project(directory, env={"HOME": str(home), "XDG_CACHE_HOME": cache, **(env or {})}),
        ssh=ssh,
        pids={name: found[instance["InstanceId"]] for name, instance in made.items()},
        addresses={name: instance["PrivateIpAddress"] for name, instance in made.items()},
    )
    config, known = "", ""
    for name, script in scripts.items():
        address = hosts.addresses[name]
        until(partial(ssh.answers, address), f"{name} does not answer")
        hosts.as_root(name, script)
        config += f"Host {name}\n HostName {address}\n User ubuntu\n"
        key = (hosts.root(name) / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
        known += f"{address} {key[0]} {key[1]}\n"
    (home / ".ssh" / "config").write_text(config)
    (home / ".ssh" / "known_hosts").write_text(known)
    return hosts
