"""Hosts that are not nodes of the cluster, with their own paths, user and port; tested in this process."""

import pytest

from foundation.remote_command import RemoteCommand
from job_channels import make_agents, make_order
from node.protocol import HostSettings, JobHost
from node.ssh import ssh_command
from node.supervisor import remains
from node.supervisor.agents import command
from node.supervisor.processes import Processes, with_secrets
from node.wire import RoleOrder

LAB = JobHost(
    name="lab",
    ip="10.9.0.1",
    instance_id="",
    own_host=HostSettings(
        port=2222,
        user="alice",
        python="/home/alice/e/bin/python",
        code_dir="/home/alice/t",
        cwd="/home/alice/run",
        command=("/home/alice/e/bin/python", "a.py"),
        tree="/home/alice/t",
    ),
)
ORDER = make_order(
    job="j",
    name="mine",
    python="/e/bin/python",
    hosts=(JobHost(name="node-0", ip="10.0.0.4", instance_id="i-0"), LAB),
    hostfile=("10.0.0.4", "10.9.0.1:2222"),
    kv_store="dist_sync",
    workers=2,
    servers=2,
    command=("/e/bin/python", "a.py"),
    cwd="/run",
    tree="/t",
    env={"PATH": "/e/bin:/usr/bin", "CLUSTER_DATA_CREDENTIALS": "instance"},
    secrets={"AWS_SECRET_ACCESS_KEY": "x"},
    job_setup=("make",),
)


def order_for(book: Processes, role: str, host: str) -> RoleOrder:
    return book.order_of(book.add(role, host), {})


def test_processes_get_the_hosts_paths_and_the_jobs_credentials() -> None:
    book = Processes(ORDER, make_agents(ORDER))
    there, here = order_for(book, "worker", "10.9.0.1"), order_for(book, "worker", "10.0.0.4")
    assert there.address == "10.9.0.1"
    assert there.folder == "/home/alice/run"
    assert there.commands == (("/home/alice/e/bin/python", "a.py"),)
    ours = {"CLUSTER_JOB_NAME": "mine"}
    wanted = {"PATH": "/home/alice/e/bin:/usr/bin", "AWS_SECRET_ACCESS_KEY": "x", **ours}
    assert there.env == wanted  # without CLUSTER_DATA_CREDENTIALS: the host has no instance profile
    assert (here.commands, here.folder) == ((ORDER.spec.command,), "/run")
    assert here.env == {**wanted, "PATH": "/e/bin:/usr/bin", "CLUSTER_DATA_CREDENTIALS": "instance"}
    [make] = order_for(book, "setup", "10.9.0.1").commands
    assert make[-2:] == ("/home/alice/run", "/home/alice/e/bin")


OURS = {"AWS_ACCESS_KEY_ID": "ASIAOURS", "AWS_SECRET_ACCESS_KEY": "ours", "AWS_SESSION_TOKEN": "ours", "MORE": "ours"}


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ({"A": "b", "S3_REGION": "eu-west-1"}, {"A": "b", "S3_REGION": "eu-west-1", **OURS}),
        (
            {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "mine"},
            {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "mine", "MORE": "ours"},
        ),
        ({"AWS_ACCESS_KEY_ID": ""}, {"AWS_ACCESS_KEY_ID": "", "MORE": "ours"}),
        ({"AWS_SESSION_TOKEN": "mine"}, {"AWS_SESSION_TOKEN": "mine", "MORE": "ours"}),
        ({"AWS_PROFILE": "other"}, {"AWS_PROFILE": "other", "MORE": "ours"}),
        ({"MORE": "mine"}, {**OURS, "MORE": "mine"}),
    ],
)
def test_the_users_aws_credentials_replace_the_jobs(own: dict[str, str], found: dict[str, str]) -> None:
    assert with_secrets(own, OURS) == found


def test_staging_uses_the_users_keys_but_no_profile() -> None:
    staged = {"CLUSTER_DATA_CREDENTIALS": "instance"}
    assert "CLUSTER_DATA_CREDENTIALS" not in with_secrets({**staged, "AWS_ACCESS_KEY_ID": "AKIA"}, OURS)
    assert with_secrets({**staged, "AWS_PROFILE": "other"}, OURS)["CLUSTER_DATA_CREDENTIALS"] == "instance"


def test_ssh_uses_the_hosts_user_and_port() -> None:
    words = ssh_command(LAB, RemoteCommand("id"))
    assert words[-2] == "alice@10.9.0.1"
    assert words[words.index("-p") + 1] == "2222"
    known = next(word for word in words if word.startswith("UserKnownHostsFile="))
    assert known.endswith("/.cluster/ssh/known_hosts_of_others")
    node = ssh_command(ORDER.hosts[0], RemoteCommand("id"))
    assert node[-2] == "10.0.0.4"
    assert node[node.index("-p") + 1] == "22"


def test_an_agent_and_a_search_use_the_hosts_own_runtime() -> None:
    wanted = "exec env CLUSTER_JOB_ID=j /home/alice/t/bin/python -Es /home/alice/t/node agent"
    assert wanted in command(ORDER, LAB)[-1]
    words = remains.search_program("j", LAB).text
    assert words == "exec /home/alice/t/bin/python -B -Es /home/alice/t/node agent end j"  # without sudo
