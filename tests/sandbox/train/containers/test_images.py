"""An image's way to the nodes: from the registry to the head, and from node to node."""

from pathlib import Path

import pytest

from container_nodes import container_nodes
from oci_images import mxnet_image

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

TRAIN = ("train", "-v", "--launcher", "env", "--", "python3", "-c", "print('runs')")


def test_three_nodes_take_one_image_from_the_registry(tmp_path: Path) -> None:
    image = mxnet_image()
    (tmp_path / "images").mkdir()
    with container_nodes(tmp_path / "images", nodes=3, framework="none") as nodes:
        with nodes.configured(nodes.push(image, "chain:latest")):
            done = nodes.project.run(*TRAIN, timeout_s=600)
            again = nodes.project.run(*TRAIN)
        assert done.stdout.count("] runs\n") == again.stdout.count("] runs\n") == 3
        assert done.stderr.count("has the image from another node") == 2, done.stderr
        assert "another node" not in again.stderr
        pulled = nodes.registry.pulls("chain")
        assert [pulled.count(f"/v2/chain/blobs/sha256:{layer.sha256}") for layer in image.layers] == [1, 1]
        listed = nodes.project.run("exec", "--", "podman", "images", "--no-trunc", "--format", "{{.ID}}").stdout
        assert [line.partition(" sha256:")[2] for line in listed.splitlines()] == [image.id] * 3
        for host in nodes.hosts.values():
            assert not list((host.root / "home/ubuntu/.cluster/images").glob("*"))
            assert not list((host.root / "home/ubuntu/.cluster/files").glob("*/image-*"))
