"""The names of images: SERVER/NAME:TAG and SERVER/NAME@DIGEST. Pure.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests describes names, tags and
digests. A name without a server is on Docker Hub, as for `docker pull`.
"""

import re

from msgspec import Struct
from msgspec.structs import replace

DOCKER_HUB = "docker.io"
LOCAL = "localhost"
"""The server in podman's names of images that are in no registry."""
_NAME = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
SERVER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?")
_ECR = re.compile(r"(?P<account>[0-9]{12})\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")


class Reference(Struct, frozen=True):
    """An image's name. server: its registry's host, such as "docker.io" or "registry.example.com:5000".

    name: the repository in that registry. tag: "" if there is only a digest. digest: the digest of its manifest,
    "sha256:...", or "".
    """

    server: str
    name: str
    tag: str = ""
    digest: str = ""

    @property
    def is_local(self) -> bool:
        """Whether the image is in no registry, only on the nodes themselves."""
        return self.server == LOCAL

    @property
    def ecr(self) -> tuple[str, str] | None:
        """The AWS account and the region of the ECR registry that has the image; None for other registries."""
        found = _ECR.fullmatch(self.server)
        return (found["account"], found["region"]) if found is not None else None

    def at(self, digest: str) -> "Reference":
        """The same image by the digest of its manifest."""
        return replace(self, tag="", digest=digest)

    def __str__(self) -> str:
        """The name in the engines' form. With a digest, the tag is left out, because it has no meaning."""
        return f"{self.server}/{self.name}" + (f"@{self.digest}" if self.digest else f":{self.tag}")


def parse_reference(image: str) -> Reference:
    """The parts of an image's name, with defaults for missing ones. Raises ValueError, which explains the mistake."""
    rest, _, digest = image.partition("@")
    if digest and _DIGEST.fullmatch(digest) is None:
        raise ValueError('after "@" comes the digest: sha256: and 64 hexadecimal digits')
    server, slash, path = rest.partition("/")
    if not slash or not ("." in server or ":" in server or server == LOCAL):
        server, path = DOCKER_HUB, rest
    if server in ("index.docker.io", "registry-1.docker.io"):
        server = DOCKER_HUB
    if SERVER.fullmatch(server) is None:
        raise ValueError(f'"{server}" is not a server, HOST or HOST:PORT')
    name, colon, tag = path.partition(":")
    if colon and _TAG.fullmatch(tag) is None:
        raise ValueError('after ":" comes the tag: letters, digits, ".", "_" and "-"')
    if _NAME.fullmatch(name) is None:
        raise ValueError('not an image\'s name: lower-case letters, digits, "/" and single ".", "_" or "-" in between')
    if server == DOCKER_HUB and "/" not in name:
        name = f"library/{name}"
    return Reference(server, name, tag if tag or digest else "latest", digest)
