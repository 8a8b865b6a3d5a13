"""[container] of cluster.toml."""

from typing import Any

import pytest

from bootstrap.container.config import ContainerConfig, parse_mount, parse_size
from cluster.config import parse_config
from foundation.errors import ConfigError

REGISTRY = {"server": "r.example.com", "username": "me", "password_env": "PASSWORD"}


def read(**table: Any) -> ContainerConfig:
    return parse_config({"name": "a", "container": table}, source="cluster.toml").container


def test_all_keys() -> None:
    mounts = ["/data:/data:ro", "~/cache:/cache"]
    config = read(image="r.example.com/train:1", registry=REGISTRY, shm_size="2g", mounts=mounts, engine="podman")
    assert config.registry.username == "me"
    assert parse_size(config.shm_size) == 2 << 30
    assert list(map(parse_mount, config.mounts)) == [("/data", "/data", True), ("~/cache", "/cache", False)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"image": "Wrong"}, 'container.image = "Wrong": not an image\'s name'),
        ({"registry": {"server": "r.example.com", "username": "me"}}, "lacks password_env"),
        ({"registry": {**REGISTRY, "password": "hunter2"}}, "unknown key"),
        ({"registry": {**REGISTRY, "server": "https://r.example.com"}}, "container.registry.server"),
        ({"registry": {**REGISTRY, "username": "me:you"}}, "container.registry.username"),
        ({"registry": {**REGISTRY, "password_env": "hunter 2"}}, "container.registry.password_env"),
        ({"image": "train", "registry": REGISTRY}, 'image is at "docker.io"'),
        ({"shm_size": "1g!"}, "container.shm_size"),
        ({"shm_size": "63m"}, "less than 64m"),
        ({"mounts": ["data:/data"]}, "container.mounts[0]"),
        ({"mounts": ["/data:/proc"]}, "container's own system"),
        ({"mounts": ["/data:/a/../proc"]}, "a path with .."),
    ],
)
def test_mistakes_are_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**table)
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)
