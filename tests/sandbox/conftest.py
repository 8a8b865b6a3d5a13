"""A running sandbox for the tests of this folder, and fixtures to inspect it from outside."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

from ec2_client import client
from ec2_sandbox import control
from foundation.progress import silent
from job_steps import borrowed
from project import Project
from sandbox_steps import RunningSandbox, Ssh, enter, find_live, sandbox_in, terminate_all

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client


@pytest.fixture(scope="session")
def shared_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSandbox]:
    """The one sandbox of this test run; use `sandbox`, which also sets the environment."""
    with sandbox_in(tmp_path_factory.mktemp("project")) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def keeper(shared_sandbox: RunningSandbox) -> "EC2Client":
    """A client of the shared sandbox's EC2, which no test closes or changes."""
    with pytest.MonkeyPatch.context() as patch:
        enter(shared_sandbox, patch)
        client = boto3.client("ec2")
        client.describe_vpcs()  # from now on it has its credentials
        return client


@pytest.fixture
def sandbox(
    shared_sandbox: RunningSandbox, keeper: "EC2Client", monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningSandbox]:
    """The shared sandbox, with this test's environment pointing at it. Instances that the test launches end with it."""
    enter(shared_sandbox, monkeypatch)
    before = find_live(keeper)
    yield shared_sandbox
    if fresh := find_live(keeper) - before:
        keeper.terminate_instances(InstanceIds=[*fresh])


@pytest.fixture(scope="session")
def shared_phantom(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSandbox]:
    """A sandbox whose instances have no hosts; use `phantom`, which also sets the environment."""
    with sandbox_in(tmp_path_factory.mktemp("phantom"), hosts="none") as sandbox:
        yield sandbox


@pytest.fixture
def phantom(shared_phantom: RunningSandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningSandbox]:
    """The shared sandbox without hosts; no instance runs in it and no fault is armed when the test begins."""
    enter(shared_phantom, monkeypatch)
    yield shared_phantom
    control.disarm_faults(shared_phantom.project_dir, "all")
    terminate_all(client("ec2"))


@pytest.fixture
def nodes(two_nodes: Project) -> Iterator[Project]:
    """The shared cluster, on which no job runs or waits, and no fault is armed, after the test."""
    with borrowed(two_nodes) as project:
        yield project


@pytest.fixture
def own_project(tmp_path: Path) -> Iterator[Path]:
    """A folder for a sandbox of the test's own, which it may break."""
    try:
        yield tmp_path
    finally:
        control.reset(tmp_path, report=silent)


@pytest.fixture(scope="session")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Ssh:
    key = tmp_path_factory.mktemp("ssh") / "id_ed25519"
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)), check=True)
    return Ssh(key=key)
