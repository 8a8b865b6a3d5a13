"""What is checked before a job in containers, and how a password reaches the engine."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert, to_builtins

from bootstrap.container import chain, prepare
from bootstrap.container.config import ContainerConfig
from bootstrap.container.prepare import Login
from bootstrap.container.reference import parse_reference
from foundation.errors import ClusterError
from foundation.progress import silent
from node.setup.containers import engine
from node.setup.containers import prepare as node_side
from node_facts import make_programs
from project import REPOSITORY
from waits import until

REFERENCE = parse_reference("r.example.com/train:1")
LOGIN = Login(server="r.example.com", username="me", password="hunter2")
AUTH = base64.b64encode(b"me:hunter2").decode()
DIGEST = "sha256:" + "ab" * 32


def found(**more: Any) -> Any:
    return convert({"engine": ["podman"], "reasons": [], **more}, prepare._EngineFacts)


def image(**more: Any) -> Any:
    facts = {"id": "sha256:1", "digests": [], "path": "", "python_path": ""}
    return convert({**facts, **more}, prepare._Image)


def test_nodes_without_an_engine_are_named() -> None:
    lacking = found(engine=None, reasons=["docker: not installed", "podman: not installed"])
    with pytest.raises(ClusterError) as caught:
        prepare.check_nodes({"node-0": found(), "node-1": lacking}, ContainerConfig(image="a"))
    assert "neither Docker nor Podman works on node-1" in str(caught.value)
    assert "node-1: docker: not installed; podman: not installed" in str(caught.value)
    assert "apt-get install -y podman" in (caught.value.hint or "")


class Talk:
    """A node where a request fails with this message. With None, files are taken out of an image."""

    name = "node-0"

    def __init__(self, message: str | None) -> None:
        self._said = message

    def call(self, request: Any, kind: Any) -> Any:
        return kind(failed=self._said) if self._said else kind(taken=request["take"])


class Images:
    """A node with images: `own` is the id of the one that it has by its name, `head` that of another."""

    def __init__(self, name: str, own: str | None = None, *, head: str = "") -> None:
        self.name, self.own = name, own
        self.ids = {one for one in (own, head) if one}

    def inspect(self, reference: str) -> Any:
        here = reference if reference in self.ids else self.own if ":latest" in reference else None
        return image(id=here) if here else None


LOCAL = parse_reference("localhost/train")
HEAD_ID, OTHER_ID = f"sha256:{'a1' * 32}", f"sha256:{'b2' * 32}"


@pytest.mark.parametrize(
    ("own", "by_id", "passed"),
    [
        pytest.param(HEAD_ID, "", [], id="the same"),
        pytest.param(OTHER_ID, "", ["node-1"], id="another"),
        pytest.param(OTHER_ID, HEAD_ID, [], id="another, and the head's from an earlier job"),
        pytest.param(None, "", ["node-1"], id="none"),
    ],
)
def test_an_image_that_only_nodes_have_is_the_heads(
    own: str | None, by_id: str, passed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[str] = []

    def pass_on(_head: Any, others: Any, image_id: str, *, report: Any) -> None:
        for talk in others:
            got.append(talk.name)
            talk.ids.add(image_id)

    monkeypatch.setattr(chain, "pass_on", pass_on)
    found = prepare.distribute(
        Images("node-0", HEAD_ID),  # type: ignore[arg-type]
        [Images("node-1", own, head=by_id)],  # type: ignore[list-item]
        LOCAL,
        image(id=HEAD_ID),
        find_login=lambda: None,
        report=silent,
    )
    assert ({name: one.id for name, one in found.items()}, got) == ({"node-1": HEAD_ID}, passed)


@pytest.mark.parametrize(
    "message",
    [
        "there is no module mxnet",
        "Error: crun: executable file `python3` not found in $PATH: No such file or directory",
        'exec: "python3": executable file not found in $PATH: unknown',
    ],
)
def test_whether_an_image_has_mxnet(message: str) -> None:
    def take(message: str | None, *, is_required: bool = False) -> str | None:
        talk, config = Talk(message), ContainerConfig(image="a")
        return prepare.take_launcher(talk, image(), config, is_required=is_required)  # type: ignore[arg-type]

    assert take(None) == ".cluster/launcher/1"
    assert take(message) is None
    for unknown, is_required in ((message, True), ("it did not end within 120 s", False)):
        with pytest.raises(ClusterError, match=r"a has no MXNet with tools/launch\.py"):
            take(unknown, is_required=is_required)


@pytest.mark.parametrize(
    ("message", "login", "why", "hint"),
    [
        ("unauthorized: authentication required", LOGIN, 'to node-0 as "me"', "registry.password_env"),
        ("unauthorized: authentication required", None, "to node-0 without a user", "set [container] registry"),
        ("Error: denied: requested access to the resource is denied", None, "refuses", "do not exist, too"),
        ("toomanyrequests: You have reached your pull rate limit", None, "limits how often node-0", "log in"),
        ("manifest unknown", LOGIN, "r.example.com has no image train with", "correct [container] image"),
        ("x509: certificate signed by unknown authority", None, "does not trust", "certs.d/r.example.com/ca.crt"),
        ("write /var: no space left on device", None, "has no room", "volume_size_gib"),
        ("lookup r.example.com: no such host", None, "node-0 cannot pull", "curl -sSI https://r.example.com/v2/"),
    ],
)
def test_a_pull_that_fails(message: str, login: Login | None, why: str, hint: str) -> None:
    error = prepare.explain_pull(f"Trying to pull\n{message}", REFERENCE, node="node-0", login=login)
    assert why in str(error)
    assert message in str(error)
    assert hint in (error.hint or "")
    assert "hunter2" not in f"{error}{login}"


@pytest.mark.parametrize(
    ("name", "digests"),
    [
        ("r.example.com/train:1", [f"r.example.com/other@sha256:{'0' * 64}", f"r.example.com/train@{DIGEST}"]),
        ("ubuntu", [f"ubuntu@{DIGEST}"]),
        ("ubuntu", [f"docker.io/library/ubuntu@{DIGEST}"]),
    ],
)
def test_the_digest_of_an_image(name: str, digests: list[str]) -> None:
    assert prepare.find_digest(image(digests=digests), parse_reference(name)) == DIGEST


# -- the program on the node -------------------------------------------------------------------------------------------

PULLS = """
case "$1" in  # setsid: what sudo has started survives a kill of sudo, too
pull) cat "$4" "$4" >"$HOME/path"; setsid sh -c 'mv "$HOME/path" "$HOME/reads"; sleep 30' ;;
esac
"""
NODE_SIDE = """
import sys
sys.path.insert(0, "{code}")
from node.setup.containers import engine, prepare
engine.SEARCH_PATH = "{path}"
prepare.main()
"""


def test_a_pull_through_the_nodes_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_programs(tmp_path, podman='echo "through $HTTPS_PROXY" >&2; exit 1')
    monkeypatch.setattr(engine, "SEARCH_PATH", f"{tmp_path}:/usr/bin")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    node = node_side.Node()
    node._engine = ["podman"]
    assert node.answer({"pull": "r.example.com/a:1", "login": None}) == {"failed": "through http://proxy.example:3128"}


def test_no_password_is_left_by_a_killed_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine may read it several times; it is in memory alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    make_programs(tmp_path, podman=PULLS)
    words = [sys.executable, "-c", NODE_SIDE.format(path=f"{tmp_path}:/usr/bin", code=REPOSITORY)]
    env = {**os.environ, "HOME": str(tmp_path)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env) as node:
        for request in ({"find": "podman"}, {"pull": "r.example.com/train:1", "login": to_builtins(LOGIN)}):
            node.stdin.write(json.dumps(request).encode() + b"\n")
            node.stdin.flush()
        until((tmp_path / "reads").exists, "the engine reads")
        node.kill()
    assert (tmp_path / "reads").read_text().count(AUTH) == 2
    assert [os.readlink(path) for path in tmp_path.glob("cluster-*/*")] == ["/proc/self/fd/0"]
