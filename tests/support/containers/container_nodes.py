"""A sandbox cluster whose nodes have podman, and a password-protected registry with images for them."""

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ec2_sandbox import control
from job_steps import Host, all_pids, command_line, hosts_of, namespace_of
from oci_images import Image
from project import Project, shipped
from real_registry import USER, Registry, registry, trust

PACKAGES = ("podman", "crun", "uidmap", "fuse-overlayfs", "containers-storage")
"""containers-storage contains a setting that makes podman mount layers instead of copying them."""
ENGINES = ("podman", "conmon", "crun", "fuse-overlayfs", "slirp4netns")
VARIABLE = "PASSWORD_OF_THE_REGISTRY"
PASSWORD = "canaryR3gistryPassw0rd0123456789"


@dataclass(frozen=True)
class ContainerNodes:
    """A cluster in `project`, whose nodes trust `registry`."""

    project: Project
    registry: Registry

    @property
    def hosts(self) -> dict[str, Host]:
        return hosts_of(self.project)

    def push(self, image: Image, name: str) -> str:
        """Pushes an image to the registry as NAME:TAG; returns its name for cluster.toml."""
        return self.registry.push(image, name)

    @property
    def login(self) -> dict[str, str]:
        """The value of [container] registry."""
        return {"server": self.registry.server, "username": USER, "password_env": VARIABLE}

    def configured(self, image: str, **values: Any) -> AbstractContextManager[None]:
        """In the block, jobs run in this image, and cluster.toml has these values for its keys."""
        login = {} if image.startswith("localhost/") else {"registry": self.login}
        return self.project.configured(**{"image": image, **login, **values})

    def containers(self) -> list[str]:
        """The containers that podman has on all nodes, running or not: "[node-0] NAME"."""
        found = []
        for host in self.hosts.values():
            listed = host.root / "home/ubuntu/.local/share/containers/storage/overlay-containers/containers.json"
            if listed.exists():
                found += [f"[{host.name}] {', '.join(one['names'])}" for one in json.loads(listed.read_text())]
        return found

    def engine_programs(self) -> list[str]:
        """The command lines of the engine's programs on all nodes."""
        inside = {host.namespace for host in self.hosts.values()}
        lines = [command_line(pid) for pid in all_pids() if namespace_of(pid) in inside]
        words = [" ".join(line).strip() for line in lines if os.path.basename(line[0] if line else "") in ENGINES]
        return [line for line in words if line != "podman"]  # it keeps the user's namespace and does not end


@contextmanager
def container_nodes(directory: Path, *, nodes: int = 2, **values: Any) -> Iterator[ContainerNodes]:
    """Brings up a cluster whose nodes can run containers. values: for keys of cluster.toml."""
    project = Project(directory, env={VARIABLE: PASSWORD})
    values |= {"provision__nodes": nodes, "sandbox__packages": PACKAGES}
    project.write(shipped(**values))
    store = directory.with_name(f"{directory.name}-registry")  # jobs send the project's folder
    store.mkdir()
    try:
        project.run("sandbox", "start", timeout_s=600)
        info = control.find_running(directory)
        assert info is not None
        address = info.endpoint_url.removeprefix("https://").partition(":")[0]
        with registry(store, address, PASSWORD) as given:
            project.write(shipped(**values, bootstrap__setup=[trust(given)]))
            project.run("up", timeout_s=600)
            yield ContainerNodes(project, given)
    finally:
        project.run("sandbox", "stop", "--yes")
