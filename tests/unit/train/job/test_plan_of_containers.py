"""A job's plan for [container]: the Python that runs, the parts for each node, and the nodes that pull the image."""

import base64
from pathlib import Path
from typing import Any

import boto3
import moto
import pytest

from bootstrap.container.prepare import PreparedImage
from cluster.app import App
from cluster.config import parse_config
from cluster.containers import find_login
from foundation.errors import ConfigError
from job_world import SCRIPT, cpus, gpus, plan
from node.engines.engine import Framework, Head
from node.engines.launch_py import SshLaunchPy
from node.protocol import Container
from provision.aws.clients import Clients
from train.job.config import TrainConfig
from train.job.defaults import render_settings
from train.job.job_plan import choose_launcher_use, find_used

REFERENCE = "r.example.com/train@sha256:" + "ab" * 32
ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:1"


def prepared(nodes: int, **more: Any) -> PreparedImage:
    one = Container(engine=("podman",), image="sha256:1", path="/opt/bin:/usr/bin", mounts=(("~/data", "/data", True),))
    return PreparedImage(reference=REFERENCE, nodes={f"node-{index}": one for index in range(nodes)}, **more)


def test_an_image_with_its_own_framework() -> None:
    image, volumes = prepared(2, launcher="/l"), ("/shared",)
    job = plan(TrainConfig(launcher="ssh"), 2, framework="none", image=image, volumes=volumes)
    assert job.order.spec.command[:2] == ("python3", SCRIPT)
    assert "PATH" not in job.order.env
    assert job.order.spec.image == REFERENCE
    assert job.order.containers["node-1"] == Container(
        engine=("podman",),
        image="sha256:1",
        path="/opt/bin:/usr/bin",
        mounts=(("/shared", "/shared", False), ("~/data", "/data", True)),
    )
    assert f"  image: {REFERENCE} (podman)" in render_settings(job)
    [launch] = SshLaunchPy().plan_launches(job.order, Head(hostfile="h", mpi_ssh="m", role_words=("r",)))
    assert launch.env == {"CLUSTER_LAUNCHER_FOLDER": "/l"}


def test_a_mounted_environment() -> None:
    job = plan(TrainConfig(), gpus(1, 1), image=prepared(2))
    assert job.order.spec.command[0] == "/home/ubuntu/.cluster/env/ab/bin/python"
    assert job.order.env["PATH"] == "/home/ubuntu/.cluster/env/ab/bin:/opt/bin:/usr/bin"
    assert all(one.has_environment for one in job.order.containers.values())


@pytest.mark.parametrize(("launcher", "with_mxnet", "without"), [("mpi", "mpi", "mpi"), ("slurm", "ssh", "env")])
def test_mxnet_in_the_image_uses_its_kv_store(launcher: str, with_mxnet: str, without: str) -> None:
    config = TrainConfig(launcher=launcher)
    for folder, engine, store, servers in (("/l", with_mxnet, "dist_sync", 2), (None, without, "none", 0)):
        image = prepared(2, launcher=folder)
        order = plan(config, 2, framework="none", image=image).order
        assert (order.train.launcher, order.train.kv_store, order.spec.servers) == (engine, store, servers)
        assert (order.image_launcher, order.spec.command[0]) == (folder, "python3")


def test_which_launchers_look_for_mxnet_in_the_image() -> None:
    def uses(framework: Framework = "none", **config: Any) -> str:
        return choose_launcher_use(TrainConfig(**config), framework)

    assert [uses(launcher=name) for name in ("ssh", "local")] == ["required"] * 2
    assert [uses(launcher=name) for name in ("mpi", "slurm", "sge", "pbs")] == ["optional"] * 4
    assert [uses(launcher=name, kv_store="none") for name in ("mpi", "slurm")] == ["none"] * 2
    assert [uses(launcher=name) for name in ("auto", "env", "torchrun")] == ["none"] * 3
    assert [uses("mxnet", launcher=name) for name in ("ssh", "mpi", "slurm")] == ["none"] * 3


def test_only_nodes_that_a_job_may_use_get_the_image() -> None:
    nodes = cpus(3)

    def used(**config: Any) -> list[str]:
        return [node.host.name for node in find_used(TrainConfig(**config), nodes, "mxnet")]

    assert used() == ["node-0", "node-1", "node-2"]
    assert used(hosts=("node-2",)) == ["node-0", "node-2"]
    assert used(launcher="local") == ["node-0"]
    assert used(launcher="slurm", hosts=("node-2",)) == ["node-0", "node-1", "node-2"]


def app_with(tmp_path: Path, **container: Any) -> App:
    app = App(config_path=tmp_path / "cluster.toml")
    app.__dict__["config"] = parse_config({"name": "a", "container": container}, source="x")
    return app


def test_a_token_of_ecr_is_new_for_each_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with moto.mock_aws():
        asked: list[str] = []
        clients = Clients(boto3.session.Session(region_name="us-east-1"), region="us-east-1")
        clients.session.events.register("before-call.ecr.GetAuthorizationToken", lambda **_: asked.append("token"))
        monkeypatch.setattr(App, "clients", clients)
        ask = find_login(app_with(tmp_path, image=ECR))
        assert asked == []
        first, _ = ask(), ask()
        assert asked == ["token", "token"]
        assert (first.server, first.username) == (ECR.partition("/")[0], "AWS")
        assert first.password not in repr(first)
        data = boto3.client("ecr", region_name="eu-west-1").get_authorization_token(registryIds=["123456789012"])
        token = base64.b64decode(data["authorizationData"][0]["authorizationToken"]).decode()
        assert token == f"AWS:{first.password}"


def test_a_password_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = {"server": "r.example.com", "username": "me", "password_env": "PASSWORD_OF_TEST"}
    app = app_with(tmp_path, image="r.example.com/a", registry=registry)
    monkeypatch.delenv("PASSWORD_OF_TEST", raising=False)
    with pytest.raises(ConfigError, match="PASSWORD_OF_TEST is not set on this machine"):
        find_login(app)
    monkeypatch.setenv("PASSWORD_OF_TEST", "hunter2")
    login = find_login(app)()
    assert (login.username, login.password) == ("me", "hunter2")
    assert find_login(app_with(tmp_path, image="public/a"))() is None
    assert find_login(app_with(tmp_path))() is None
