"""The [container] section of cluster.toml: the image that jobs run in."""

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Annotated, Literal

from msgspec import Meta

from bootstrap.container.reference import SERVER, parse_reference
from foundation.setting_types import Settings, Shape

EngineName = Literal["auto", "docker", "podman"]
SHM_PATTERN = r"auto|[1-9][0-9]{0,9}[kmgKMG]?"
SMALLEST_SHM_BYTES = 64 << 20
"""The engines' default for a container; with less, NCCL and data loaders fail."""
_FACTORS = {"k": 10, "m": 20, "g": 30}
# ":" separates the parts of a mount; "," separates the parts of the engines' own options.
_PATH = r"(?:/|~/)[^:,\x00\r\n]+"
_MOUNT = re.compile(rf"({_PATH}):({_PATH})(:ro|:rw)?")
# Engines mount some of these themselves; of the others, the job needs the image's own.
_SYSTEM = ("/", "/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/lib", "/lib64", "/sbin", "/run")


def parse_mount(text: str) -> tuple[str, str, bool]:
    """The source, the target and whether it is read-only in "HOST:CONTAINER[:ro]". Pure.

    Both paths are absolute, or below ~/, the node user's home. Raises ValueError if the text is invalid.
    """
    found = _MOUNT.fullmatch(text)
    if found is None:
        raise ValueError('must be "HOST:CONTAINER" or "HOST:CONTAINER:ro", both absolute paths or below ~/')
    source, target = found[1].rstrip("/") or "/", found[2].rstrip("/") or "/"
    if any(part == ".." for path in (source, target) for part in path.split("/")):
        raise ValueError("a path with ..")
    if target in _SYSTEM or target.startswith("/dev/") or target == "~":
        raise ValueError(f"{target} is a folder of the container's own system")
    return source, target, found[3] == ":ro"


def parse_size(text: str) -> int | None:
    """The number of bytes in "512m", "2g" or "1073741824"; None for "auto". Pure.

    Raises ValueError for less than 64 MiB.
    """
    if text == "auto":
        return None
    unit = _FACTORS.get(text[-1].lower(), 0)
    size_bytes = int(text.rstrip("kmgKMG")) << unit
    if size_bytes < SMALLEST_SHM_BYTES:
        raise ValueError('less than 64m, which is too small for data loaders and NCCL: use "2g" or more')
    return size_bytes


def _check_image(image: str) -> str:
    if image:
        parse_reference(image)
    return image


def _check_shm_size(text: str) -> str:
    parse_size(text)
    return text


def _check_mount(text: str) -> str:
    parse_mount(text)
    return text


class RegistryConfig(Settings, frozen=True, kw_only=True):
    """The registry that has the image, and the user who pulls it."""

    server: Annotated[
        str, Shape(rf"({SERVER.pattern})?"), Meta(description="the registry's host, with its port: HOST or HOST:PORT")
    ] = ""
    username: Annotated[str, Shape(r"[^:\x00-\x1f]*"), Meta(description="the user there: text without colons")] = ""
    password_env: Annotated[
        str,
        Shape(r"([A-Za-z_][A-Za-z0-9_]*)?"),
        Meta(description="the name of a variable of this machine's environment that has the password"),
    ] = ""

    def conflicts(self, given: AbstractSet[str]) -> Iterator[str]:  # noqa: ARG002 - includes defaults
        """Yields a message if some keys are set and others are not."""
        missing = [name for name in ("server", "username", "password_env") if not getattr(self, name)]
        if 0 < len(missing) < 3:
            yield f"needs server, username and password_env, and lacks {' and '.join(missing)}"

    def __bool__(self) -> bool:
        """Whether a registry is set."""
        return bool(self.server)


class ContainerConfig(Settings, frozen=True, kw_only=True):
    """The image that jobs run in."""

    image: Annotated[
        str,
        _check_image,
        Meta(description='the image that jobs run in: "SERVER/NAME:TAG" or "SERVER/NAME@sha256:..."; "": none'),
    ] = ""
    registry: RegistryConfig = RegistryConfig()
    shm_size: Annotated[
        str,
        Shape(SHM_PATTERN),
        _check_shm_size,
        Meta(
            description='the size of the job\'s own /dev/shm on each node: "512m", "2g"; "auto": the node\'s /dev/shm'
        ),
    ] = "auto"
    mounts: Annotated[
        tuple[Annotated[str, _check_mount], ...],
        Meta(description='a list of more folders of the nodes in the container: "HOST:CONTAINER", "HOST:CONTAINER:ro"'),
    ] = ()
    engine: Annotated[
        EngineName,
        Meta(description='what runs containers: "docker" or "podman"; "auto": the first that works on each node'),
    ] = "auto"

    def conflicts(self, given: AbstractSet[str]) -> Iterator[str]:  # noqa: ARG002 - includes defaults
        """Yields a message for a registry other than the image's."""
        if self.image and self.registry:
            server = parse_reference(self.image).server
            if server != self.registry.server:
                yield (
                    f'registry.server is "{self.registry.server}", but image is at "{server}": write image = '
                    f'"{self.registry.server}/..." or remove registry'
                )
