"""Jobs in containers on real hosts, with rootless podman and images from a registry with TLS and a password."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from container_nodes import PASSWORD, ContainerNodes, container_nodes
from job_steps import borrowed, nothing_left
from oci_images import mxnet_image, plain_image, torch_image

pytestmark = pytest.mark.sandbox

WHERE = """
import os, sys
seen = {"uid": os.getuid(), "python": sys.executable, "home": os.path.expanduser("~"), "cwd": os.getcwd()}
print("seen", seen, "ssh" if os.path.exists(os.path.expanduser("~/.ssh")) else "no ssh", flush=True)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerNodes]:
    with container_nodes(tmp_path_factory.mktemp("containers"), framework="none") as nodes:
        nodes.project.run("data", "demo", "digits")
        nodes.project.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")
        yield nodes


@pytest.fixture
def nodes(shared: ContainerNodes) -> Iterator[ContainerNodes]:
    with borrowed(shared.project):
        yield shared


def test_where_a_process_runs(nodes: ContainerNodes) -> None:
    image = plain_image()
    name = nodes.push(image, "plain:latest")
    with nodes.project.configured(image=name, registry=nodes.login):
        done = nodes.project.run("train", "--launcher", "env", "--", "python3", "-c", WHERE)
    print(done.stdout, done.stderr)
    record = json.loads(nodes.project.run("jobs", "--json").stdout)[0]
    assert record["image"] == f"{name.removesuffix(':latest')}@{image.digest}"
    assert nodes.containers() == {"node-0": [], "node-1": []}
