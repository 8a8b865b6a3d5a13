"""What the head gets in order to replace lost nodes by itself: the program, and settings without secrets."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bootstrap.environment.requirements import Requirements
from cluster.app import App
from cluster.config import parse_config
from cluster.nodes.ec2 import nodes_of
from cluster.nodes.source import Nodes
from cluster.recovery.head_client import HeadSettings, find_client, find_obstacle, leave_secrets_out
from cluster.recovery.on_head import HeadApp, merge_pins, prepare
from cluster.session import find_request, find_requirements
from foundation import authorities
from provision_world import make_node, make_state

SECRET = "hidden-4711"
TABLE: dict[str, Any] = {
    "name": "demo",
    "cloud": "sandbox",
    "provision": {"nodes": 3, "instance_profile": "auto", "ssh_from": "auto", "market": "spot"},
    "train": {
        "script": "mine.py",
        "args": ["--token", SECRET],
        "env": {"TOKEN": SECRET},
        "env_worker": {"TOKEN": SECRET},
        "env_server": {"TOKEN": SECRET},
        "restarts": 7,
    },
    "bootstrap": {"packages": ["-r requirements.txt"], "sync": ["mine/"]},
    "notify": {"webhook": f"https://example.org/{SECRET}", "command": f"mail {SECRET}"},
    "sandbox": {"boot_delay_s": 0},
}
OVERRIDES = {"train.env": {"A": SECRET}, "train.args": (SECRET,), "train.workers": 2, "notify.command": SECRET}


def make_settings(**changes: Any) -> HeadSettings:
    table, overrides = leave_secrets_out(TABLE, OVERRIDES)
    values: dict[str, Any] = {
        "table": table,
        "overrides": overrides,
        "region": "eu-west-1",
        "line": "restrict ssh-ed25519 KEY cluster-internal",
        "ssh_address": "public",
        "packages": Requirements(lines=("six>=1",)),
        "public_key": "ssh-ed25519 USER",
        "launch_key": b"derived",
        "pins": "i-1 ssh-ed25519 ONE\n",
        "instances": ("i-1", "i-2"),
        "records": {"bundles/0123": "[]"},
        **changes,
    }
    return HeadSettings(**values)


def test_secrets_stay_on_the_users_machine() -> None:
    data = msgspec.json.encode(make_settings())
    assert SECRET.encode() not in data
    assert msgspec.json.decode(data, type=HeadSettings) == make_settings()
    assert make_settings().overrides == {"train.workers": 2}
    assert SECRET in json.dumps(TABLE)  # unchanged


def test_the_heads_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    app = HeadApp(make_settings(), folder=tmp_path)
    config = app.config
    assert (config.name, config.cloud, config.train.restarts, config.train.workers) == ("demo", "aws", 7, 2)
    assert (config.provision.region, config.provision.ssh_address) == ("eu-west-1", "private")
    assert (config.bootstrap.sync, config.notify.is_set) == ((), False)
    request = find_request(app)
    assert (request.config.ssh_address, request.config.nodes) == ("public", 3)  # the user reaches new nodes as before
    assert request.from_head == "restrict ssh-ed25519 KEY cluster-internal"
    assert find_requirements(app) == make_settings().packages
    known = app.files.known_instances()
    assert (known.instance_ids, known.public_key) == ({"i-1", "i-2"}, "ssh-ed25519 USER")
    app.files.note_instances(["i-3"])
    assert app.files.known_instances().instance_ids == {"i-1", "i-2", "i-3"}
    assert app.files.private_key == tmp_path / ".cluster/ssh/id_ed25519"


def test_the_head_trusts_the_systems_authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of Ubuntu 22.04, where OpenSSL has a folder, but no file."""
    monkeypatch.setattr(os, "environ", os.environ | {"HOME": str(tmp_path), "SSL_CERT_FILE": "/none"})
    monkeypatch.setattr(authorities, "FILES", ("/none", str(tmp_path)))
    prepare(make_settings(private_ca=True), tmp_path)
    assert os.environ["AWS_CA_BUNDLE"] == str(tmp_path)


PROFILE = "arn:aws:iam::123456789012:instance-profile/cluster-us-east-1-demo"


def nodes_with(app: App, profile: str | None) -> Nodes:
    return nodes_of(app, make_state(make_node(0, profile_arn=profile)))


@pytest.mark.parametrize(
    ("text", "is_sent"),
    [
        ('[provision]\ninstance_profile = "auto"\n', True),
        ("", False),
        ('[provision]\ninstance_profile = "auto"\n[train]\non_node_loss = "fail"\n', False),
        ('cloud = "hosts"\n[hosts]\nnames = ["a", "b"]\n', False),
    ],
)
def test_who_gets_the_program(tmp_path: Path, text: str, *, is_sent: bool) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(f'name = "demo"\n{text}')
    app = App(config_path=path)
    with_role, without = (nodes_with(app, profile) for profile in (PROFILE, None))
    assert (find_client(app, with_role, nodes=2) is not None) is is_sent
    assert find_client(app, with_role, nodes=1) is None
    assert find_client(app, without, nodes=2) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"volumes": [{"mount": "/data", "source": "head", "size_gib": 10}]}, "[[volumes]]"),
        ({"bootstrap": {"mxnet": "mxnet-1.7.0-py3-none-any.whl"}}, "is a file"),
    ],
)
def test_what_needs_the_users_machine(changes: dict[str, Any], why: str | None) -> None:
    found = find_obstacle(parse_config({"name": "demo", **changes}, source="cluster.toml"))
    assert (why in found if why and found else found) is (True if why else None)


def test_host_keys_of_both_machines_are_known(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    assert merge_pins("i-1 ssh-ed25519 ONE\n", path) == "i-1 ssh-ed25519 ONE\n"
    path.write_text("i-2 ssh-ed25519 TWO\n")
    found = merge_pins("i-1 ssh-ed25519 ONE\n", path)
    assert sorted(found.splitlines()) == ["i-1 ssh-ed25519 ONE", "i-2 ssh-ed25519 TWO"]
