"""Real hosts with real commands: the host key must be on the console, or nothing is sent."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ec2_sandbox.hosts.hosts import Folder
from ec2_sandbox.paths import paths_of
from project import Project
from sandbox_steps import Ssh

pytestmark = pytest.mark.sandbox

RELOAD_KEYS = "sudo pkill -HUP -o -x sshd"
CONNECTS = ("exec", "--", "true")
"""A command that does nothing but connect to all nodes."""


def pins_of(project: Project) -> Path:
    [key] = (project.directory / "state").rglob("id_ed25519")
    return key.with_name("known_hosts")


def ssh_to(project: Project) -> Ssh:
    [key] = (project.directory / "state").rglob("id_ed25519")
    return Ssh(key=key)


def nodes_of(project: Project) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = json.loads(project.run("status", "--json").stdout)["nodes"]
    return nodes


def console_of(project: Project, instance_id: str) -> Path:
    """The file of the host's console, which GetConsoleOutput reads."""
    return Folder(paths_of(project.directory), instance_id).console


def looks_at_consoles(project: Project) -> int:
    calls = [json.loads(line) for line in project.run("sandbox", "log", "--json").stdout.splitlines()]
    return Counter(call["action"] for call in calls)["GetConsoleOutput"]


def fingerprint(pin: str) -> str:
    """The fingerprint of the key in `instance-id type base64`, by OpenSSH."""
    public = pin.partition(" ")[2]
    done = subprocess.run(("ssh-keygen", "-lf", "-"), input=public, capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


@contextmanager
def without_pins(project: Project) -> Iterator[Path]:
    """In the block, the file of pins does not exist, as on another machine."""
    pins = pins_of(project)
    before = pins.read_text()
    pins.unlink()
    try:
        yield pins
    finally:
        pins.write_text(before)


@contextmanager
def other_host_key(project: Project, address: str, own: str) -> Iterator[str]:
    """Gives the node's sshd another host key, as if another machine answered; yields its fingerprint."""
    ssh = ssh_to(project)
    # In one command each, since an sshd without keys accepts no connection.
    told = ssh.read(
        address,
        "sudo mkdir /etc/ssh/own && sudo mv /etc/ssh/ssh_host_* /etc/ssh/own/ && "
        "sudo ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key && "
        f"ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub && {RELOAD_KEYS}",
    )
    other = told.split()[1]
    wait_until_presented(address, other)
    try:
        yield other
    finally:
        ssh.run(
            address,
            "sudo rm /etc/ssh/ssh_host_* && sudo mv /etc/ssh/own/* /etc/ssh && sudo rmdir /etc/ssh/own && "
            f"{RELOAD_KEYS}",
        )
        wait_until_presented(address, own)


def wait_until_presented(address: str, wanted: str) -> None:
    """Waits until sshd presents the host key with that fingerprint."""
    deadline = time.monotonic() + 20
    while True:
        scan = subprocess.run(("ssh-keyscan", "-t", "ed25519", address), capture_output=True, text=True, check=False)
        if scan.stdout and fingerprint(scan.stdout) == wanted:
            return
        assert time.monotonic() < deadline, scan
        time.sleep(0.05)


def test_pins_match_the_consoles_and_replace_them(two_nodes: Project) -> None:
    two_nodes.run(*CONNECTS)
    pins = dict.fromkeys(pins_of(two_nodes).read_text().splitlines())
    assert sorted(pin.split()[0] for pin in pins) == sorted(node["instance_id"] for node in nodes_of(two_nodes))
    for pin in pins:
        assert f" {fingerprint(pin)} " in console_of(two_nodes, pin.split()[0]).read_text()
    looks = looks_at_consoles(two_nodes)
    assert looks >= len(pins)
    two_nodes.run(*CONNECTS)
    two_nodes.run("up")
    assert looks_at_consoles(two_nodes) == looks


def test_another_host_key_is_refused_and_nothing_is_sent(two_nodes: Project) -> None:
    node = nodes_of(two_nodes)[1]
    own = next(pin for pin in pins_of(two_nodes).read_text().splitlines() if pin.startswith(node["instance_id"]))
    ssh = ssh_to(two_nodes)
    with other_host_key(two_nodes, node["public_ip"], fingerprint(own)) as presented, without_pins(two_nodes) as pins:
        log_size = int(ssh.read(node["public_ip"], "sudo stat -c %s /var/log/auth.log"))
        done = two_nodes.run(*CONNECTS, code=1)
        messages = ssh.read(node["public_ip"], f"sudo tail -c +{log_size + 1} /var/log/auth.log")
        assert node["instance_id"] not in pins.read_text()
    assert f"presented: ssh-ed25519 {presented}\n" in done.stderr
    assert f" {fingerprint(own)}\n" in done.stderr.partition("\n  console: ")[2]
    assert "Nothing was sent to it" in done.stderr
    # sshd logs the user as soon as it knows one. The last lines are from this test's own login.
    refused = [line for line in messages.splitlines() if "Connection closed by" in line]
    assert refused  # a busy machine leaves time for one attempt, a fast one for several
    assert not [line for line in refused if "user" in line]
    two_nodes.run(*CONNECTS)
