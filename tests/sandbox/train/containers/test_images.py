"""An image's way to the nodes: from the registry to the head, and from node to node."""

import re
from collections.abc import Iterator

import pytest

from container_nodes import ContainerNodes, container_nodes
from job_steps import borrowed
from oci_images import Image, mxnet_image, plain_image

TRAIN = ("train", "-v", "--launcher", "env", "--", "python3", "-c")

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerNodes]:
    with container_nodes(tmp_path_factory.mktemp("images"), nodes=3, framework="none") as nodes:
        yield nodes


@pytest.fixture
def nodes(shared: ContainerNodes) -> Iterator[ContainerNodes]:
    with borrowed(shared.project):
        yield shared
    shared.project.run("exec", "--", "podman", "rmi", "--all", "--force")


def ids(nodes: ContainerNodes) -> set[str]:
    """The ids of the images that nodes have."""
    said = nodes.project.run("exec", "--", "podman", "images", "--no-trunc", "--format", "{{.ID}}").stdout
    assert len(said.splitlines()) == len(nodes.hosts), said
    return {line.partition(" sha256:")[2] for line in said.splitlines()}


def layers_pulled(nodes: ContainerNodes, image: Image, name: str) -> list[int]:
    """How often each layer was pulled from the registry."""
    pulled = nodes.registry.pulls(name)
    return [pulled.count(f"/v2/{name}/blobs/sha256:{layer.sha256}") for layer in image.layers]


def train(nodes: ContainerNodes, image: str, **values: object) -> str:
    with nodes.configured(image, **values):
        done = nodes.project.run(*TRAIN, "print('runs')", timeout_s=600)
    assert done.stdout.count("] runs\n") == len(nodes.hosts)
    return done.stderr


def test_three_nodes_take_one_image_from_the_registry(nodes: ContainerNodes) -> None:
    image = mxnet_image()
    name = nodes.push(image, "chain:latest")
    said = train(nodes, name)
    assert said.count("has the image from another node") == 2, said
    assert layers_pulled(nodes, image, "chain") == [1, 1]
    assert ids(nodes) == {image.id}
    for host in nodes.hosts.values():
        assert not list((host.root / "home/ubuntu/.cluster/images").glob("*"))
        assert not list((host.root / "home/ubuntu/.cluster/files").glob("*/image-*"))
    again = train(nodes, name)
    assert "another node" not in again
    assert layers_pulled(nodes, image, "chain") == [1, 1]


def test_one_missing_node_pulls_by_itself(nodes: ContainerNodes) -> None:
    image = plain_image()
    name = nodes.push(image, "single:latest")
    train(nodes, name)
    nodes.project.run("exec", "--node", "node-2", "--", "podman", "rmi", "--all", "--force")
    said = train(nodes, name)
    assert "another node" not in said
    assert re.search(r"node-2: has pulled \S+/single@sha256:", said)
    assert ids(nodes) == {image.id}
