"""The processes that the head starts by launch.py and mpirun, and how the supervisor learns about them."""

import socket
from typing import Any

import pytest

from job_channels import make_agents, make_order
from node import ports
from node.protocol import Container, JobHost
from node.supervisor import launching
from node.supervisor.processes import Processes

TORCHRUN = ("GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
HOSTS = tuple(JobHost(name=f"node-{i}", ip=f"10.0.0.{4 + i}", instance_id=f"i-{i}") for i in range(3))


def make_processes(**more: Any) -> Processes:
    fields = {"hosts": HOSTS, "lines": ("node-0", "node-1"), "workers": 2, "servers": 1}
    order = make_order(**{**fields, **more})
    return Processes(order, make_agents(order))


@pytest.mark.parametrize("has_environment", [False, True])
def test_an_images_own_torchrun_is_in_its_container(*, has_environment: bool) -> None:
    there = {"node-0": Container(engine=("podman",), image="sha256:1", path="/img", has_environment=has_environment)}
    known = make_processes(launcher="torchrun", containers=there)
    launcher = known.add("launcher", "10.0.0.4")
    known.order_of(launcher, dict.fromkeys(TORCHRUN, "1"))
    assert launcher.is_contained is not has_environment


def test_the_heads_programs_keep_a_logins_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """mpirun's processes on the head inherit them, and the command that replaces nodes calls AWS."""
    monkeypatch.setenv("HTTPS_PROXY", "http://p:1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    env = launching.environment(make_order(python="/e/bin/python", hosts=HOSTS, secrets={"S": "hush"}))
    assert (env["HTTPS_PROXY"], "169.254.169.254" in env["no_proxy"]) == ("http://p:1", True)
    assert env["PATH"].startswith("/e/bin:")
    assert "hush" not in env.values()


def test_mpiruns_daemon_gets_no_secret() -> None:
    known = make_processes(launcher="mpi", python="/e/bin/python", secrets={"S": "hush"}, env={"A": "b"})
    order = known.order_of_program("orted x")
    assert order.commands == (("/bin/sh", "-c", "orted x"),)
    assert order.env == {"PATH": "/e/bin:/usr/local/bin:/usr/bin:/bin"}


def test_torchrun_gets_no_secret() -> None:
    known = make_processes(launcher="torchrun", kv_store="none", secrets={"S": "hush"}, env={"A": "b"})
    launched = dict.fromkeys(TORCHRUN, "1")
    assert known.order_of(known.add("launcher", "10.0.0.4"), launched).env == {"A": "b"}


def test_a_port_in_use_is_not_chosen() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        taken = other.getsockname()[1]
        with pytest.raises(OSError, match="none of the ports"):
            ports.choose([taken])
