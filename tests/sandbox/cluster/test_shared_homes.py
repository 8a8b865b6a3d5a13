"""cloud = "hosts" where the second host's home folder is the first one's, as over NFS, which this kernel lacks.

The hosts are odd in other ways, too: both have a bridge with the same address, as Docker makes one, and a second
network, their /tmp is mounted noexec, and they resolve no names, not even their own. On the second one, sudo asks for a
password.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from own_hosts import make_own_hosts
from project import Project
from sandbox_steps import enter, sandbox_in

pytestmark = pytest.mark.sandbox

CONFIG = """
name = "shared"
cloud = "hosts"

[hosts]
names = ["one", "two"]

[bootstrap]
framework = "none"
setup = ["export ANSWER=$(uname -n)"]
"""
PROGRAM = """
import os, pathlib
name = os.environ["CLUSTER_HOST"]
assert os.environ["ANSWER"] == os.uname().nodename
assert os.environ["GLOO_SOCKET_IFNAME"] == "eth0"
pathlib.Path("out-" + name).touch()
print("here is", name, flush=True)
"""
ODD = """
ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && ip link set docker0 up
ip link add va type veth peer name vb && ip addr add 10.7.3.1/24 dev va && ip link set va up && ip link set vb up
mount -t tmpfs -o noexec tmpfs /tmp
echo 127.0.0.1 localhost >/etc/hosts
echo nameserver 192.0.2.1 >/etc/resolv.conf
"""
# As NFS: a file that is opened is looked up on the server, and links may be absolute, which newer sshfs must be told.
MOUNT = """
printf %s '{key}' >/root/key && chmod 600 /root/key
links=$(sshfs --help 2>&1 | grep -ow no_contain_symlinks | head -n 1)
sshfs -o allow_other,default_permissions,dir_cache=no,attr_timeout=0,entry_timeout=0 \
    -o IdentityFile=/root/key,StrictHostKeyChecking=no${{links:+,$links}} ubuntu@{address}:/home/ubuntu /home/ubuntu
rm /etc/sudoers.d/*
"""


@dataclass(frozen=True, kw_only=True)
class World:
    """The user's project, and the first host's home folder, which both hosts have."""

    project: Project
    home: Path
    keys: str

    def is_clean(self) -> bool:
        return not (self.home / ".cluster").exists() and (self.home / ".ssh/authorized_keys").read_text() == self.keys


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("shared")
    with sandbox_in(directory, packages=("sshfs",)) as sandbox, pytest.MonkeyPatch.context() as monkeypatch:
        enter(sandbox, monkeypatch)
        yield make_world(directory)


def make_world(directory: Path) -> World:
    hosts = make_own_hosts(directory, {"one": ODD, "two": ODD})
    hosts.as_root("two", MOUNT.format(key=hosts.ssh.key.read_text(), address=hosts.addresses["one"]))
    hosts.project.write(CONFIG)
    (directory / "own.py").write_text(PROGRAM)
    home = hosts.root("one") / "home/ubuntu"
    return World(project=hosts.project, home=home, keys=(home / ".ssh/authorized_keys").read_text())


def test_up_says_that_sudo_asks(world: World) -> None:
    """For a password, which nobody can type there."""
    world.project.write(CONFIG.replace("setup = [", 'setup = ["sudo true", '))
    failed = world.project.run("up", code=1)
    assert failed.stderr.splitlines()[-1].startswith("  try: sudo asks for a password on two: allow this user")
    world.project.write(CONFIG)


def test_set_up_job_and_down(world: World) -> None:
    """One host after the other is set up, the job's files are copied once, and `down` cleans once."""
    done = world.project.run("train", "own.py")
    assert sorted(re.findall(r"here is (\w+)", done.stdout)) == ["one", "two"]
    assert "two: the home folder is that of one" in done.stderr
    [work] = world.home.glob(".cluster/jobs/*/work")
    assert sorted(path.name for path in work.glob("out-*")) == ["out-one", "out-two"]
    assert len(list(world.home.glob(".cluster/env/*/.complete"))) == 1
    checks = json.loads(world.project.run("verify", "--json").stdout)
    assert {check["node"] for check in checks if check["check"] == "disk"} == {"one", "two"}
    assert not [check for check in checks if check["status"] == "failed"]
    assert world.project.run("exec", "--node", "two", "--", "whoami").stdout == "[two] ubuntu\n"
    assert "cleaned one, two" in world.project.run("down", "--yes").stdout
    assert world.is_clean()


def test_down_without_a_host_of_the_home(world: World) -> None:
    """As after an allocation: its nodes take no ssh any more, but what was on them is gone."""
    world.project.run("up")
    config = world.project.directory / "home/.ssh/config"
    config.write_text(re.sub(r"(Host two\n HostName) .*", r"\1 192.0.2.1", config.read_text()))
    assert "cleaned one, two" in world.project.run("down", "--yes").stdout
    assert world.is_clean()
