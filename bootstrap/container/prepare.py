"""Prepares nodes for jobs in containers, before a job: finds each node's engine, and gives all of them the same image.

The first node resolves the tag; the others get the same image by its digest. No engine and an image that cannot be
pulled are errors here.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from typing import Literal

from msgspec import Struct

from bootstrap.apply import ReadyNode
from bootstrap.container import chain
from bootstrap.container.config import ContainerConfig, parse_mount, parse_size
from bootstrap.container.reference import Reference, parse_reference
from bootstrap.ssh.connections import on_all
from bootstrap.ssh.node_program import NodeProgram
from bootstrap.step import step
from foundation.errors import ClusterError, render_last_lines
from foundation.progress import Event, Report
from node.protocol import Container

INSTALL = (
    'cluster exec -- sudo apt-get install -y podman, once; or [bootstrap] setup = ["sudo apt-get install -y podman"]'
)
_ROOM_HINT = "set a larger [provision] volume_size_gib, or remove images: cluster exec -- podman image prune -af"


@dataclass(frozen=True, slots=True)
class Login:
    """The user who pulls an image from a registry."""

    server: str
    username: str
    password: str = field(repr=False)


LauncherUse = Literal["none", "optional", "required"]
"""Whether launch.py runs on the head when only the image has MXNet: never, if the image has MXNet, or always."""
FindLogin = Callable[[], Login | None]
"""Called before each pull, because each pull gets a new ECR token. None: the image is public."""


class PreparedImage(Struct, frozen=True, kw_only=True):
    """The image of a job on all nodes. reference: its name, with its digest. nodes: how each node runs it, by its name.

    launcher: the folder on the head with the image's own launch.py; None if it was not copied.
    """

    reference: str
    nodes: Mapping[str, Container]
    launcher: str | None = None


class _EngineFacts(Struct, frozen=True):
    engine: tuple[str, ...] | None
    reasons: tuple[str, ...]


class _Image(Struct, frozen=True):
    id: str
    digests: tuple[str, ...]
    path: str
    python_path: str


class _Done(Struct, frozen=True):
    """failed: why the request failed, None if it succeeded. taken: the path of the files taken out of an image."""

    failed: str | None = None
    image: _Image | None = None
    taken: str = ""


class ContainerNode(NodeProgram):
    """The conversation with node/setup/containers/prepare.py on a node. Raises ConnectError, NodeCommandError."""

    def __init__(self, node: ReadyNode) -> None:
        super().__init__(node.connection, "containers")
        self.name = node.host.name
        self.node = node

    def find_engine(self, wanted: str) -> _EngineFacts:
        """Has the node find its engine. wanted: [container] engine."""
        return self.call({"find": wanted}, _EngineFacts)

    def inspect(self, reference: str) -> _Image | None:
        """The image; None if the node does not have it."""
        return self.call({"inspect": reference}, _Done).image

    def run(self, container: Container, command: Sequence[str]) -> str | None:
        """Runs a command in a container to its end. Returns its output if it failed, else None."""
        return self.call({"try": container, "command": command}, _Done).failed


def prepare(
    nodes: Sequence[ReadyNode],
    config: ContainerConfig,
    *,
    find_login: FindLogin,
    report: Report,
    launcher: LauncherUse = "none",
) -> PreparedImage:
    """Prepares nodes for jobs in [container] image; the first node resolves its tag.

    launcher: whether the image's own launch.py is copied to the head.
    Raises ConnectError, and ClusterError, which names every node with a problem.
    """
    reference = parse_reference(config.image)
    with ExitStack() as stack:

        def find_engine(node: ReadyNode) -> tuple[ContainerNode, _EngineFacts]:
            session = stack.enter_context(closing(ContainerNode(node)))
            return session, session.find_engine(config.engine)

        asked = on_all(nodes, find_engine)
        found = {session.name: facts for session, facts in asked}
        check_nodes(found, config)
        head, *others = sessions = [session for session, _ in asked]
        first = resolve(head, reference, find_login=find_login, report=report)
        fixed = reference
        if not reference.is_local:
            fixed = reference if reference.digest else reference.at(find_digest(first, reference))
        images = {head.name: first}
        images |= distribute(head, others, fixed, first, find_login=find_login, report=report)
        on_all(sessions, lambda one: map_owners(one, images[one.name], report=report))
        folder = take_launcher(head, first, config, is_required=launcher == "required") if launcher != "none" else None
    return PreparedImage(
        reference=str(fixed) if fixed.digest else f"{fixed.server}/{fixed.name}@{first.id}",
        nodes={
            one.name: Container(
                engine=found[one.name].engine or (),
                image=images[one.name].id,
                path=images[one.name].path,
                python_path=images[one.name].python_path,
                shm_size=parse_size(config.shm_size),
                mounts=tuple(map(parse_mount, config.mounts)),
                gpus=bool(one.node.facts.gpus),
            )
            for one in sessions
        },
        launcher=folder,
    )


def check_nodes(found: Mapping[str, _EngineFacts], config: ContainerConfig) -> None:
    """Raises ClusterError for nodes without an engine. Pure."""
    lacking = {name: one for name, one in found.items() if one.engine is None}
    if lacking:
        wanted = "Docker nor Podman" if config.engine == "auto" else config.engine
        neither = "neither " if config.engine == "auto" else "no "
        lines = [f"{name}: {'; '.join(one.reasons)}" for name, one in lacking.items()]
        raise ClusterError(
            f"[container] image needs an engine, and {neither}{wanted} works on {', '.join(lacking)}:\n  "
            + "\n  ".join(lines),
            hint=INSTALL,
        )


def resolve(session: ContainerNode, reference: Reference, *, find_login: FindLogin, report: Report) -> _Image:
    """Gets the image on the node that resolves its tag. Does not pull a digest that the node already has.

    Raises ClusterError.
    """
    image = session.inspect(str(reference)) if reference.is_local or reference.digest else None
    if image is None and reference.is_local:
        raise ClusterError(
            f"[container] image: {session.name} has no image {reference}",
            hint=f"localhost/ names an image that {session.name} has already, and the other nodes get from it: podman "
            f"load or build on {session.name}; or name a registry's",
        )
    return image or pull(session, reference, find_login(), report=report)


def pull(session: ContainerNode, reference: Reference, login: Login | None, *, report: Report) -> _Image:
    """Pulls an image on a node. Raises ClusterError."""
    with step(report, f"pulling {reference}", where=session.name, done=f"has pulled {reference}"):
        done = session.call({"pull": str(reference), "login": None if login is None else asdict(login)}, _Done)
        if done.image is None:
            raise explain_pull(done.failed or "the image is gone", reference, node=session.name, login=login)
    return done.image


def map_owners(session: ContainerNode, image: _Image, *, report: Report) -> None:
    """Has a node give an image's files the owners that its containers see. Raises ClusterError."""
    report(Event(kind="start", what="preparing the image for this user", where=session.name))
    failed = session.call({"map": image.id}, _Done).failed
    if failed is not None:
        raise ClusterError(
            f"{session.name}: podman cannot copy the image with this user as the owner of its files:"
            + render_last_lines(failed.splitlines()),
            hint=_ROOM_HINT
            if "no space left" in failed.lower()
            else f"cluster exec --node {session.name} -- podman info",
        )


def explain_pull(message: str, reference: Reference, *, node: str, login: Login | None) -> ClusterError:
    """The error for a failed pull. message: the engine's output. Pure."""
    who = f'as "{login.username}"' if login is not None else "without a user"
    rights = (
        "check the password in the variable that [container] registry.password_env names, and the user's rights"
        if login is not None
        else "set [container] registry, or correct image: many registries say so of images that do not exist, too"
    )
    certificates = (
        f"put its CA on the nodes with [bootstrap] setup: /etc/docker/certs.d/{reference.server}/ca.crt, for podman "
        f"/etc/containers/certs.d/{reference.server}/ca.crt"
    )
    table = (
        ("unauthorized|authentication required|invalid username|denied",
         f"{reference.server} refuses {reference} to {node} {who}", rights),
        ("manifest unknown|name unknown|not found: manifest|repository does not",
         f"{reference.server} has no image {reference.name} with this tag or digest", "correct [container] image"),
        ("toomanyrequests|rate limit", f"{reference.server} limits how often {node} may pull {who}",
         "wait; or log in with [container] registry, or copy the image to a registry of your own"),
        ("x509|certificate", f"{node} does not trust the certificate of {reference.server}", certificates),
        ("no space left", f"{node} has no room for {reference}", _ROOM_HINT),
        ("", f"{node} cannot pull {reference}",
         f"cluster exec --node {node} -- curl -sSI https://{reference.server}/v2/"),
    )  # fmt: skip
    why, hint = next((why, hint) for pattern, why, hint in table if re.search(pattern, message.lower()))
    return ClusterError(f"{why}:{render_last_lines(message.splitlines())}", hint=hint)


def find_digest(image: _Image, reference: Reference) -> str:
    """The digest by which other nodes get the same image. Pure. Raises ClusterError if the engine knows none."""
    wanted = f"{reference.name}@"
    # docker omits docker.io/library/.
    short = f"{reference.name.removeprefix('library/')}@"
    known = [f"{reference.server}/{wanted}", wanted, short]
    for digest in image.digests:
        if any(digest.startswith(begin) for begin in known):
            return digest.rpartition("@")[2]
    raise ClusterError(f"the engine knows no digest of {reference}: {', '.join(image.digests) or 'none'}")


def distribute(
    head: ContainerNode,
    others: Sequence[ContainerNode],
    reference: Reference,
    image: _Image,
    *,
    find_login: FindLogin,
    report: Report,
) -> dict[str, _Image]:
    """Gives the head's image to the other nodes. Returns their images, by the nodes' names.

    reference: a name with a digest, or the name of an image that only the nodes have.
    Raises ClusterError, which names every failed node.
    """

    def find(sessions: Sequence[ContainerNode]) -> dict[str, _Image]:
        images = on_all(sessions, lambda session: session.inspect(image.id))
        return {one.name: here for one, here in zip(sessions, images, strict=True) if here is not None}

    def get(session: ContainerNode) -> tuple[str, _Image]:
        here = pull(session, reference, find_login(), report=report)
        if here.id != image.id:
            what = f"{session.name}: {reference} is {here.id}, and on {head.name} {image.id}"
            raise ClusterError(what, hint="run the command again")
        return session.name, here

    found = find(others)
    lacking = [session for session in others if session.name not in found]
    if chain.is_chained(reference, len(lacking)):
        chain.pass_on(head, lacking, image.id, report=report)
        found |= find(lacking)
        lacking = [session for session in lacking if session.name not in found]
    if lacking and reference.is_local:
        where = ", ".join(session.name for session in lacking)
        raise ClusterError(
            f"{reference} is {image.id} on {head.name}, and {where} could not take it from there",
            hint="load the same image on all nodes",
        )
    return found | dict(on_all(lacking, get))


def take_launcher(session: ContainerNode, image: _Image, config: ContainerConfig, *, is_required: bool) -> str | None:
    """Copies launch.py out of the image to a node: mxnet/tools/ and dmlc_tracker/. Returns their folder on the node.

    Returns None for an image without MXNet or Python, unless it is required. Raises ClusterError.
    """
    folder = f".cluster/launcher/{image.id.partition(':')[2]}"
    done = session.call({"take": folder, "image": image.id, "command": ["python3", "-c", _PACK_LAUNCHER]}, _Done)
    if done.failed is not None:
        if not is_required and (_NO_MXNET in done.failed or _NO_PROGRAM.search(done.failed)):
            return None
        raise ClusterError(
            f"{session.name}: {config.image} has no MXNet with tools/launch.py in its python3:"
            + render_last_lines(done.failed.splitlines()),
            hint='use an image that has it; or [bootstrap] framework = "mxnet", whose environment is mounted into the '
            "image",
        )
    return done.taken


_NO_MXNET = "there is no module mxnet"
_NO_PROGRAM = re.compile("executable file .*not found")
"""The error of docker's and podman's runtimes for a program that the image does not have."""
# Finds the packages without importing them, since importing MXNet may need a GPU's driver. Prints an archive.
_PACK_LAUNCHER = """
import os, sys, tarfile
from importlib.util import find_spec
found = {}
for name, below in (("mxnet", os.path.join("tools", "launch.py")), ("dmlc_tracker", "")):
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        sys.exit("there is no module " + name)
    found[name] = os.path.join(list(spec.submodule_search_locations)[0], below)
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
    archive.add(found["mxnet"], os.path.join("mxnet", "tools", "launch.py"))
    archive.add(found["dmlc_tracker"], "dmlc_tracker")
"""
