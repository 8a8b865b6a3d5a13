"""cloud = "hosts": the hosts that become the nodes, and errors before anything starts. No test connects to a host."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import fabric
import pytest

from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import Connections
from bootstrap.ssh.host import Host, render_scp_command, render_ssh_command
from cluster.app import App
from cluster.nodes.hosts import HostSource, leave_out_silent, parse_own_address
from cluster.nodes.other_hosts import memory_of
from cluster.session import describe
from cluster.volumes import unmount_all
from foundation.errors import ConfigError, ConnectError, UsageError
from project import Project

SSH_CONFIG = """
Host gpu1
  HostName 192.0.2.1
Host gpu2
  HostName 192.0.2.2
  User bob
Host same
  HostName 192.0.2.1
Host gpu3
  HostName 192.0.2.3
Host far
  HostName far.invalid
  ProxyJump gpu1
Host gone
  HostName gone.invalid
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Returns a folder with a cluster of existing hosts. The user of its home can reach none of them."""
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "home" / ".ssh" / "config").write_text(SSH_CONFIG)
    found = Project(tmp_path, env={"HOME": str(tmp_path / "home"), "AWS_PROFILE": "nowhere"})
    list_hosts(found, "me@gpu1", "gpu2:2222", "me@gpu1")
    return found


@pytest.fixture
def hosts_app(project: Project, monkeypatch: pytest.MonkeyPatch) -> App:
    for name, value in project.environment().items():
        monkeypatch.setenv(name, value)
    return App(config_path=project.directory / "cluster.toml")


def list_hosts(project: Project, *names: str) -> None:
    project.write(f'name = "plain"\ncloud = "hosts"\n[hosts]\nnames = {json.dumps(names)}\n')


@pytest.mark.parametrize(("word", "name"), [("gpu1", "gpu1"), ("me@gpu1", "gpu1"), ("gpu2", "gpu2:2222")])
def test_a_node_is_named_by_its_host(hosts_app: App, word: str, name: str) -> None:
    assert describe(hosts_app).choose([word]) == (name,)


def test_without_names_the_hosts_of_the_last_command_count(hosts_app: App, project: Project) -> None:
    list_hosts(project)
    with pytest.raises(ConfigError, match="has no hosts"):
        describe(hosts_app)
    memory_of(hosts_app).keep_nodes(["gpu2", "gpu1", "gpu1"])
    assert describe(hosts_app).job_hosts == ("gpu2", "gpu1", "gpu1")
    hosts_app.override("train.hosts", ["gpu1"])
    assert describe(hosts_app).names == ("gpu1",)
    memory_of(hosts_app).forget(())
    assert not hosts_app.files.root.exists()


def test_hosts_of_an_earlier_allocation_are_refused(
    hosts_app: App, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may use them now."""
    list_hosts(project)
    (tmp_path / "allocated").write_text("gpu2\ngpu3\n")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "allocated"))
    monkeypatch.setenv("PBS_JOBID", "12.head")
    source = HostSource(hosts_app)
    memory_of(hosts_app).keep_nodes(["gpu2"])
    with source.open_for_set_up(source.describe, wait_s=0):
        memory_of(hosts_app).keep_nodes(["gpu1", "gpu2"])
    with pytest.raises(UsageError, match=r"not those of job 12\.head"):
        source.open_for_set_up(source.describe, wait_s=0).__enter__()


@pytest.mark.parametrize(
    ("train", "left"),
    [
        ({"nodes": 2}, ("gpu1", "gpu3")),
        ({"hosts": ["gpu3"]}, ("gpu1", "gpu3")),
        ({}, None),
    ],
)
def test_a_silent_host_is_left_out_if_the_job_can_run_without_it(
    hosts_app: App, project: Project, train: dict[str, Any], left: tuple[str, ...] | None
) -> None:
    list_hosts(project, "gpu1", "gpu2", "gpu3")
    hosts_app.overrides |= {f"train.{key}": value for key, value in train.items()}

    def connect(host: Host) -> NodeConnection:
        if host.name == "gpu2":
            raise ConnectError("gpu2: no answer")
        return NodeConnection(host, fabric.Connection(host.address))

    found: list[str] = []
    nodes, connections = describe(hosts_app), Connections(connect)
    leave_out = partial(leave_out_silent, nodes, nodes.find_hosts(), connections, warn=found.append)
    if left is None:
        with pytest.raises(ConnectError, match="gpu2: no answer"):
            leave_out(train=hosts_app.config.train)
        return
    assert tuple(host.name for host in leave_out(train=hosts_app.config.train)) == left
    assert found == ["left out: gpu2: no answer"]
    assert nodes.select(2, requested=3) == left


@pytest.mark.parametrize(
    ("names", "words", "message", "hint"),
    [
        ((), ("up",), 'cloud = "hosts", and cluster plain has no hosts', "[hosts] names = "),
        (("gpu1", "gone"), ("up",), '[hosts] names: "gone": this machine cannot resolve the name', "ssh -G gone"),
        (("gpu1", "same"), ("up",), '"same" and gpu1 are the same host (192.0.2.1)', "name a host in one way"),
        (("gpu1",), ("up", "--nodes", "2"), "--nodes is for instances", "edit [hosts] names"),
        (("gpu1",), ("resize", "3"), "nothing to launch", "edit [hosts] names in cluster.toml, then run cluster up"),
        *((("gpu1",), (word,), "nothing to launch", "") for word in ("start", "list", "adopt", "allow", "ssh-config")),
        (("gpu1",), ("stop", "--nodes"), "nothing to launch", ""),
    ],
)
def test_wrong_input_is_refused_before_anything_starts(
    project: Project, names: tuple[str, ...], words: tuple[str, ...], message: str, hint: str
) -> None:
    list_hosts(project, *names)
    shown = " ".join(project.run(*words, code=2).stderr.split())
    assert message in shown
    assert hint in shown.partition(" try: ")[2]
    assert not (project.directory / "state").exists()


def test_data_in_s3_needs_credentials_and_says_so(project: Project) -> None:
    list_hosts(project, "gpu1")
    text = (project.directory / "cluster.toml").read_text()
    project.write(f'{text}[data]\nurl = "s3://bucket/folder/"\n')
    project.env |= {"AWS_EC2_METADATA_DISABLED": "true"}
    del project.env["AWS_PROFILE"]
    output = project.run("train", code=1).stderr
    assert "no AWS credentials were found, and [data], [[volumes]] or the job names s3:// URLs" in output
    assert not (project.directory / "state").exists()


def test_ssh_and_scp_use_the_users_own_configuration() -> None:
    host = Host(
        name="gpu2:2222", instance_id="gpu2:2222", address="192.0.2.2", private_ip="192.0.2.2", user="bob",
        is_head=False, port=2222, spec="bob@gpu2:2222",
    )  # fmt: skip
    line = render_ssh_command(host, options={"IdentityFile": "x"}, is_terminal=False)
    assert line[:6] == ("ssh", "-p", "2222", "-T", "--", "bob@gpu2")
    assert render_scp_command(host, ["a"], "b/", to_node=True, options={}) == (
        "scp", "-s", "-P", "2222", "-r", "-p", "--", "./a", "bob@gpu2:b/"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("message", "address"),
    [
        ("10.0.0.2 dev eth0 src 10.0.0.1 uid 1000 \\    cache\n", "10.0.0.1"),
        ("10.0.0.7 172.17.0.1 fe80::1\n", "10.0.0.7"),
        ("local 127.0.0.1 dev lo src 127.0.0.1 uid 0\n", None),
    ],
)
def test_the_address_from_which_the_head_reaches_others(message: str, address: str | None) -> None:
    assert parse_own_address(message) == address


def test_a_host_without_an_address_does_not_stop_down(
    project: Project, hosts_app: App, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its volumes are not unmounted, which is a warning."""
    list_hosts(project, "gone")
    with hosts_app.config_path.open("a") as file:
        file.write('[[volumes]]\nmount = "/shared"\nsource = "nas:/export"\n')
    unmount_all(hosts_app, HostSource(hosts_app))
    assert "!! gone: volumes were not unmounted" in capsys.readouterr().err
