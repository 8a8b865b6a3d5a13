"""A real registry, Debian's docker-registry, with TLS and a password, at an address that the sandbox's hosts reach."""

import http.client
import os
import re
import socket
import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import trustme

from oci_images import MANIFEST, Image, program_of_package
from sandbox_steps import answers
from waits import until

CONFIG = """\
version: 0.1
log: {{level: info}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}, delete: {{enabled: true}}}}
http:
  addr: {server}
  secret: not-a-secret-of-anyone
  tls: {{certificate: {folder}/server.pem, key: {folder}/server.key}}
auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}
"""
USER = "me"


@dataclass(frozen=True)
class Registry:
    """A running registry. server: HOST:PORT. log: the file with its requests."""

    server: str
    password: str
    authority: str
    log: Path

    def push(self, image: Image, name: str) -> str:
        """Pushes an image to the registry as NAME:TAG; returns its name with the server."""
        repository, _, tag = name.partition(":")
        self._push_blob(repository, image.config, f"sha256:{image.id}")
        for layer in image.layers:
            self._push_blob(repository, layer.path, f"sha256:{layer.sha256}")
        self._ask("PUT", f"/v2/{repository}/manifests/{tag}", image.manifest, {"Content-Type": MANIFEST})
        return f"{self.server}/{name}"

    def _push_blob(self, repository: str, content: bytes | Path, digest: str) -> None:
        if self._ask("HEAD", f"/v2/{repository}/blobs/{digest}", allowed=(200, 404)).status == http.client.OK:
            return
        place = self._ask("POST", f"/v2/{repository}/blobs/uploads/").headers["Location"]
        path = re.sub("^https://[^/]*", "", place)
        path = f"{path}{'&' if '?' in path else '?'}digest={digest}"
        if isinstance(content, Path):
            with content.open("rb") as stream:
                self._ask("PUT", path, stream, {"Content-Length": str(content.stat().st_size)})
        else:
            self._ask("PUT", path, content)

    def _ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None,
        allowed: tuple[int, ...] = (200, 201, 202),
    ) -> http.client.HTTPResponse:  # fmt: skip
        connection = http.client.HTTPSConnection(
            self.server, context=ssl.create_default_context(cadata=self.authority), timeout=120, blocksize=1 << 20
        )
        login = b64encode(f"{USER}:{self.password}".encode()).decode()
        connection.request(method, path, body, {**(headers or {}), "Authorization": f"Basic {login}"})  # type: ignore[arg-type]
        answer = connection.getresponse()
        message = answer.read()
        connection.close()
        assert answer.status in allowed, f"{method} {path}: {answer.status} {message!r}"
        return answer

    def pulls(self, name: str) -> list[str]:
        """The requested paths of an image's manifests and layers, in order, without the requests of `push`."""
        pattern = rf'"GET (/v2/{name}/(?:manifests|blobs)/[^ ]+) HTTP/1.1" 200'
        return re.findall(pattern, self.log.read_text())


@contextmanager
def registry(folder: Path, address: str, password: str) -> Iterator[Registry]:
    """Runs a registry that listens at one address only. Its files are in `folder`, with only a hash of the password."""
    with socket.create_server((address, 0)) as free:
        server = f"{address}:{free.getsockname()[1]}"
    authority = trustme.CA(organization_name="the registry of a test")
    certificate = authority.issue_cert(address)
    certificate.private_key_pem.write_to_path(folder / "server.key")
    (folder / "server.pem").write_bytes(b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
    (folder / "htpasswd").write_text(f"{USER}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(5)).decode()}\n")
    (folder / "config.yml").write_text(CONFIG.format(folder=folder, server=server))
    log = folder / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [program_of_package("docker-registry", "usr/bin/docker-registry"), "serve", folder / "config.yml"],
            stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
    try:
        host, _, port = server.partition(":")
        until(lambda: answers(host, int(port)) or process.poll() is not None, "the registry does not start")
        assert process.poll() is None, log.read_text()
        yield Registry(server, password, authority.cert_pem.bytes().decode(), log)
    finally:
        process.terminate()
        process.wait(timeout=30)


def trust(registry: Registry) -> str:
    """A shell command for [bootstrap] setup that makes a node's engines trust the registry's authority."""
    folder = f"/etc/containers/certs.d/{registry.server}"
    content = b64encode(registry.authority.encode()).decode()
    return f"sudo install -d {folder} && echo {content} | base64 -d | sudo tee {folder}/ca.crt >/dev/null"
