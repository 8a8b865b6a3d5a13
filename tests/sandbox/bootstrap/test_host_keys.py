"""Real hosts with real commands: the pinned host keys are those on the consoles."""

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ec2_sandbox.hosts.hosts import Folder
from ec2_sandbox.paths import paths_of
from project import Project

pytestmark = pytest.mark.sandbox

CONNECTS = ("exec", "--", "true")
"""A command that does nothing but connect to all nodes."""


def pins_of(project: Project) -> Path:
    [key] = (project.directory / "state").rglob("id_ed25519")
    return key.with_name("known_hosts")


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
