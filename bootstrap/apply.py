"""Sets up all nodes at the same time, each as soon as it can be reached."""

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from bootstrap.config import BootstrapConfig
from bootstrap.environment.bundle import Bundle, fetch_bundle
from bootstrap.environment.client import choose_client
from bootstrap.environment.cuda import find_warnings
from bootstrap.environment.facts import NodeFacts, find_gpus, gather_facts
from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.framework import Torch, check_torch_wheel
from bootstrap.environment.package_build import PackageBuilds
from bootstrap.environment.requirements import Requirements
from bootstrap.environment.steps import NodePlan, plan_node, plan_setup, script_task, setup_digest
from bootstrap.environment.target import WheelTarget, choose_target
from bootstrap.homes import Turns, find_homes_of
from bootstrap.runtime.code import runtime_path
from bootstrap.runtime.runtime import RuntimePlacing
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import Connections, on_all
from bootstrap.ssh.host import Host
from bootstrap.ssh.keys import (
    CHANGED,
    MARK,
    UNCHANGED,
    HostKeyPins,
    authorized_line,
    known_hosts_text,
    parse_host_key,
    render_let_in,
)
from bootstrap.step import step
from bootstrap.transfer.distribute import Distribution, SetUp
from bootstrap.transfer.tree import Tree, TreeArchives
from foundation.errors import ClusterError
from foundation.progress import Event, Report
from foundation.remote_command import Quoted, RemoteCommand
from foundation.thread_pool import Once
from node.engines.engine import Framework
from provision.preflight.machines import Hardware

SCRIPT = "the set-up script"
AUTHORIZE_TIMEOUT_S = 90.0  # more than render_let_in waits for its lock


class ReadyNode(Struct, frozen=True, kw_only=True):
    """A node that can train. `python`, `code_dir` and `project_dir` are absolute paths on the node.

    code_dir: the runtime of our own programs; project_dir: the user's own files, None if there are none.
    setup: the digest of the set-up commands that have run on it, None if there are none. library: the framework in its
    environment, such as "mxnet==1.7.0.post2", the file name of a wheel, or "torch==2.13.0+cpu"; "" without one.
    torch: its PyTorch, whichever framework [bootstrap] names; None if it has none, or only among the user's own files.
    hardware: the hardware of its instance type, None if unknown. bundle: its environment's files. client: on the head,
    the words that run this project's own command; () on other nodes, and on a head without that command. home: the
    name of its home folder, which nodes may share. changed: this call has changed it. is_new: this call has placed the
    runtime or run the set-up commands, so programs that were running there before have to be started again.
    """

    host: Host
    connection: NodeConnection
    facts: NodeFacts
    python: str
    code_dir: str
    project_dir: str | None
    setup: str | None
    changed: bool
    is_new: bool = False
    framework: Framework = "mxnet"
    library: str = ""
    torch: Torch | None = None
    hardware: Hardware | None = None
    bundle: Bundle | None = None
    client: tuple[str, ...] = ()
    home: str = ""


def bootstrap(
    hosts: Sequence[Host],
    *,
    cluster: str,
    config: BootstrapConfig,
    packages: Requirements,
    project: Tree | None,
    client: Tree | None,
    connections: Connections,
    cache: Path,
    report: Report,
    own_wheel: BundleFile | None = None,
) -> tuple[ReadyNode, ...]:
    """Makes every host ready to train; a second run finds nothing to do. Returns the nodes in the order of `hosts`.

    packages: those of [bootstrap] packages and project. project: the user's own files, or None. client: this
    project's own command, which only the head gets, with its packages; None to send none.
    own_wheel: the file that [bootstrap] mxnet names.
    Raises ClusterError, which names every failed node.
    """
    if own_wheel is not None:
        packages = replace(packages, lines=(str(own_wheel.path), *packages.lines))
    homes = find_homes_of(hosts, connections, report)
    home_of = {host: name for name, home in homes.items() for host in home}
    turns = Turns(homes.values())
    trees = [tree for tree in (project, client) if tree is not None]
    with (
        Distribution(report=report) as distribution,
        TreeArchives(trees, cache=cache) as archives,
    ):
        package_builds = PackageBuilds(
            setup=setup_digest(config.setup), cache=cache, distribution=distribution, report=report
        )
        work = _Bootstrap(
            cluster=cluster,
            config=config,
            packages=packages,
            project=project,
            client=client,
            runtimes=RuntimePlacing(cache, archives, distribution),
            archives=archives,
            cache=cache,
            connections=connections,
            bundles=Once(),
            package_builds=package_builds,
            distribution=distribution,
            report=report,
        )

        def prepare(host: Host) -> ReadyNode:
            with turns.taken(host.instance_id), package_builds.awaited(host):
                return replace(work.prepare(host), home=home_of[host.instance_id])

        return tuple(on_all(hosts, prepare))


class _Bootstrap(Struct, frozen=True, kw_only=True):
    """What the set-ups of all nodes share."""

    cluster: str
    config: BootstrapConfig
    packages: Requirements
    project: Tree | None
    client: Tree | None
    runtimes: RuntimePlacing
    archives: TreeArchives
    cache: Path
    connections: Connections
    bundles: Once[WheelTarget, Bundle]
    package_builds: PackageBuilds
    distribution: Distribution
    report: Report

    def prepare(self, host: Host) -> ReadyNode:
        """Makes one node ready. Raises ClusterError."""
        connection, found = self.connections.describe(host, python=self.config.python)
        facts = self.runtimes.place(connection, found)
        first = plan_setup(facts, commands=self.config.setup, framework=self.config.framework)
        if first:
            self._set_up(connection, facts, first, what="[bootstrap] setup", done="[bootstrap] setup has run")
            facts = gather_facts(connection, python=self.config.python)
        target = choose_target(facts, config=self.config, packages=self.packages, node=host.name)
        self.package_builds.offer(connection, facts, target)
        bundle = self._find_bundle(facts, target, node=host.name)
        setup = setup_digest(self.config.setup)
        is_new = facts.runtimes != found.runtimes or bool(first)
        client = self._find_client(facts, node=host.name) if host.is_head else None
        plan = plan_node(
            facts,
            bundle=bundle,
            setup=setup,
            trees=[tree for tree in (self.project, self.client if client else None) if tree is not None],
            cluster=self.cluster,
            is_head=host.is_head,
            client=client,
        )
        if plan:
            self._set_up(connection, facts, plan, what=SCRIPT, done="ready to train")
        else:
            self.report(Event(kind="same", what="nothing to change", where=host.name))
            self.distribution.offer(connection, SetUp(python=facts.python, files=(), holds=facts.files))
        home = f"{facts.home}/.cluster"
        words: tuple[str, ...] = ()
        if client is not None and self.client is not None:
            words = (f"{home}/env/{client.digest}/bin/python", "-Es", f"{home}/tree/{self.client.digest}")
        return ReadyNode(
            host=host,
            connection=connection,
            facts=facts,
            python=f"{home}/env/{bundle.digest}/bin/python",
            code_dir=runtime_path(facts.home),
            project_dir=f"{home}/tree/{self.project.digest}" if self.project is not None else None,
            setup=setup,
            changed=is_new or bool(plan),
            is_new=is_new,
            framework=target.framework,
            library=bundle.library,
            torch=bundle.torch,
            bundle=bundle,
            client=words,
        )

    def _find_client(self, facts: NodeFacts, *, node: str) -> Bundle | None:
        """The environment of this project's own command on the head; None if it is not sent, or not possible: warns."""
        if self.client is None:
            return None
        try:
            return fetch_bundle(choose_client(facts), cache=self.cache, report=self.report)
        except ClusterError as error:
            what = f"it cannot replace lost nodes by itself, the next cluster command does: {error.message}"
            self.report(Event(kind="warn", what=what, where=node))
            return None

    def _find_bundle(self, facts: NodeFacts, target: WheelTarget, *, node: str) -> Bundle:
        """The files of the node's environment. Warns of missing drivers and libraries. Raises ClusterError."""
        fetch = partial(fetch_bundle, cache=self.cache, report=self.report, build=self.package_builds.build)
        bundle = self.bundles.get(target, partial(fetch, target))
        torch = bundle.torch
        if torch is not None and target.framework == "pytorch":
            check_torch_wheel(f"torch=={torch.version}", find_gpus(facts), node=node, machine=facts.machine)
        if torch is not None and target.base is not None and torch.version != target.base.version:
            message = f"your packages bring torch {torch.version}, which hides the image's {target.base.version}"
            self.report(Event(kind="warn", what=message, where=node))
        for message in find_warnings(facts, target, torch):
            self.report(Event(kind="warn", what=message, where=node))
        return bundle

    def _set_up(self, connection: NodeConnection, facts: NodeFacts, plan: NodePlan, *, what: str, done: str) -> None:
        """Carries out a plan. Raises ClusterError, also if files cannot be packed."""
        files = list(plan.files)
        tasks = [script_task(plan.steps, what=what)] if plan.steps else []
        for tree in plan.trees:
            file, task = self.archives.write(tree)
            files.append(file)
            tasks.append(task)
        size_mb = sum(file.size_bytes for file in files) / 1e6
        wanted = SetUp(python=facts.python, files=files, holds=facts.files, tasks=tasks)
        with step(self.report, f"copying {size_mb:.0f} MB and setting up", where=connection.host.name, done=done):
            self.distribution.set_up(connection, wanted)


def find_cluster_key(head: ReadyNode) -> str:
    """The public key with which the head logs in to the other nodes. Raises ClusterError and its kinds."""
    path = ".cluster/ssh/id_ed25519.pub"
    text = head.facts.cluster_key or head.connection.run(RemoteCommand(f"cat {path}")).last_line
    words = text.split()
    if len(words) < 2 or parse_host_key(*words[:2]) is None:
        name = head.host.name
        raise ClusterError(
            f"{name}: ~/{path} is no public key", hint=f"cluster exec --node {name} -- rm {path}; then cluster up"
        )
    return text


def let_head_in(nodes: Sequence[ReadyNode], *, pins: HostKeyPins, report: Report) -> None:
    """Lets the head, the first of the instances, log in to all of them. Raises ClusterError."""
    head = nodes[0]
    line = authorized_line(find_cluster_key(head), head_ip=head.host.private_ip)
    let_in([node for node in nodes if node.facts.authorized != (line,)], line, mark=MARK, report=report)
    pinned = pins.find_all()
    text = known_hosts_text({node.host.private_ip: pinned[node.host.instance_id] for node in nodes})
    if head.facts.known_hosts_sha256 != hashlib.sha256(text.encode()).hexdigest():
        write_known_hosts(head, "known_hosts", text)


def let_in(nodes: Sequence[ReadyNode], line: str, *, mark: str, report: Report) -> None:
    """Adds the head's line, which ends with `mark`, to the authorized_keys of nodes. Raises ClusterError."""
    homes: dict[str, list[ReadyNode]] = {}
    for node in nodes:
        homes.setdefault(node.home or node.host.instance_id, []).append(node)

    def run(home: Sequence[ReadyNode]) -> None:
        for node in home:  # they have the same authorized_keys
            script, what = render_let_in(line, mark=mark), "the script that authorizes the head"
            message = node.connection.ask(script, {CHANGED, UNCHANGED}, timeout_s=AUTHORIZE_TIMEOUT_S, what=what)
            if message == CHANGED:
                report(Event(kind="done", what="accepts logins from the head", where=node.host.name))

    on_all(list(homes.values()), run)


def write_known_hosts(head: ReadyNode, name: str, text: str) -> None:
    """Writes a file of known hosts to the head's ~/.cluster/ssh. Raises ClusterError."""
    path = f'"$HOME/.cluster/ssh/{name}"'
    script = RemoteCommand("umask 077; printf %s ", Quoted(text), f" >{path}.new && mv {path}.new {path}")
    head.connection.run(script, timeout_s=AUTHORIZE_TIMEOUT_S, what="the script that pins host keys")
