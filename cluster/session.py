"""Turns cluster.toml into nodes that are ready to train: the steps that `up`, `verify` and `train` share."""

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from msgspec import json, to_builtins
from msgspec.structs import replace
from rich.filesize import decimal

from bootstrap.apply import ReadyNode, bootstrap
from bootstrap.environment.ahead import LIKELY_GLIBC, LIKELY_PYTHONS, check_packages
from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.framework import explain_ignored
from bootstrap.environment.own_wheel import find_own_wheel
from bootstrap.environment.project import read_requirements
from bootstrap.environment.requirements import Requirements
from bootstrap.notify import find_webhook
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import Connections
from bootstrap.ssh.host import Host
from bootstrap.ssh.node_program import NodeProgram
from bootstrap.transfer.sync import SyncFiles
from cluster.app import App
from cluster.costs import find_spent
from cluster.nodes.ec2 import Ec2Source
from cluster.nodes.hosts import HostSource
from cluster.nodes.source import ANSWER_TIMEOUT_S, Nodes, NodeSource
from cluster.recovery.head_client import find_client, keep_settings
from cluster.volumes import mount_all, unmount_all
from foundation.errors import ClusterError, UsageError
from foundation.files import one_at_a_time
from foundation.progress import Event, silent
from foundation.thread_pool import run_in_thread
from foundation.user_folders import cache_folder
from node.protocol import OUR_JOB_ID, Notify
from provision.model import count
from provision.oracle.tables import find_machine
from provision.plan import Request
from train.job.payload import Payload, collect_trees

ASK_ABOVE_BYTES = 100_000_000
BOOT_TIMEOUT_S = 1200.0  # bare metal takes up to 20 minutes, and the largest GPU types more than 5
MOST_IGNORED = 6
NOTIFY_TIMEOUT_S = 30.0


ChooseHosts = Callable[[Nodes, Sequence[Host], Connections], Sequence[Host]]


def source_of(app: App) -> NodeSource:
    """Returns the source of this cluster's nodes."""
    return Ec2Source(app) if app.has_instances else HostSource(app)


def describe(app: App) -> Nodes:
    """Returns the nodes. Call enter_cloud first. Raises ClusterError or a subclass."""
    return source_of(app).describe()


def describe_and_warn(app: App) -> Nodes:
    """Like describe, but also show the warnings about the nodes."""
    nodes = describe(app)
    app.warn(*nodes.warnings)
    return nodes


def find_request(app: App) -> Request:
    """Returns the cluster that cluster.toml and this command line ask for."""
    config, head = app.config, app.on_head
    return Request(
        name=config.name,
        config=config.provision if head is None else replace(config.provision, ssh_address=head.ssh_address),
        data_url=config.data.s3_url,
        results_url=config.data.s3_results,
        volumes=config.volumes,
        lease=config.lease,
        replaces_nodes=config.train.on_node_loss == "requeue",
        from_head=None if head is None else head.line,
        recipe=partial(find_recipe, app),
        find_spent=partial(find_spent, app),
    )


def find_recipe(app: App) -> str:
    """Returns the settings that a baked image is made with, in words with digests. Raises ConfigError."""
    config = app.config.bootstrap
    recipe = (
        config.framework,
        config.python,
        config.mxnet,
        config.torch,
        read_packages(app),
        app.config.provision.user,
    )
    parts = {"environment": recipe, "setup": config.setup, "container": app.config.container.image}
    return " ".join(f"{word}={hashlib.sha256(json.encode(part)).hexdigest()[:12]}" for word, part in parts.items())


@contextmanager
def ready_nodes(
    app: App,
    nodes: Nodes | Callable[[], Nodes],
    *,
    wait_s: float = ANSWER_TIMEOUT_S,
    command: Sequence[str] = (),
    is_job: bool = False,
    choose: ChooseHosts | None = None,
    ask_head: Callable[[NodeConnection], None] | None = None,
) -> Iterator[tuple[tuple[ReadyNode, ...], str]]:
    """Connects to a cluster's nodes and sets them up. Yields the nodes, head first, and the script's path on each.

    nodes: the nodes, or a function that describes them; meanwhile, connections to their last known addresses start.
    wait_s: how long nodes may take to answer, in seconds. command: runs in a job in place of [train] script. is_job:
    reports which files are sent, even if there are none. choose: called before the set-up, with all hosts; returns
    those to set up, including the head. ask_head: see NodeSource.begin. The connections are closed at the end of the
    block.

    Raises NotFoundError when there is no cluster, the errors of `choose`, ClusterError for errors on the nodes.
    """
    source = source_of(app)
    find_nodes = cache(lambda: nodes if isinstance(nodes, Nodes) else nodes())
    with source.open_for_set_up(find_nodes, wait_s=wait_s) as connections:
        if not isinstance(nodes, Nodes):
            source.begin(connections, ask_head=ask_head)
        described = find_nodes()
        # Two commands at once would write the same files on the nodes.
        with one_at_a_time(app.files.root, does="is setting up the nodes", report=app.report):
            notify = find_notify(app)  # raises before anything is changed
            hosts = source.settle(described.find_hosts(), connections)
            chosen = choose(described, hosts, connections) if choose is not None else hosts
            trees = collect(app, command, is_job=is_job)
            ready, script = _prepare(app, source, described, connections, hosts=chosen, payload=trees)
            with suppress(ClusterError):  # such as a full disk; it only slows the start of the next command
                source.keep([node.host for node in ready], left_out=[host for host in hosts if host not in chosen])
        watched = run_in_thread(lambda: watch_events(app, ready[0], notify))  # takes as long as a login
        yield ready, script
        watched.result()


def find_notify(app: App) -> Notify | None:
    """Returns [notify] for a job's supervisor; None if it is not set. Raises ConfigError for a missing variable."""
    config = app.config.notify
    if not config.is_set:
        return None
    return Notify(cluster=app.config.name, webhook=find_webhook(config, os.environ), command=config.command)


def watch_events(app: App, head: ReadyNode, notify: Notify | None) -> None:
    """Has the head send the events of the nodes' own programs (node/setup/notify.py), or stops that without `notify`.

    Errors are warnings. On existing hosts, none of our programs ends nodes, and only jobs send events.
    """
    if not app.has_instances or (notify is None and not app.files.watched.exists()):
        return
    settings = None if notify is None else {**to_builtins(notify), "user": head.host.user}
    try:
        with closing(NodeProgram(head.connection, "notify", as_root=True)) as program:
            what, hint = "[notify] could not be set up", f"cluster ssh {head.host.name}; then run it again"
            program.call({"settings": settings}, dict[str, Any], timeout_s=NOTIFY_TIMEOUT_S, what=what, hint=hint)
        app.files.note_watched(is_watched=notify is not None)
    except ClusterError as error:
        app.warn(f"[notify] sends no events but those of jobs: {error.message}", where=head.host.name)


def _prepare(
    app: App,
    source: NodeSource,
    described: Nodes,
    connections: Connections,
    *,
    hosts: Sequence[Host],
    payload: Payload,
) -> tuple[tuple[ReadyNode, ...], str]:
    config = app.config
    packages = find_requirements(app)
    nodes = bootstrap(
        hosts,
        cluster=config.name,
        config=config.bootstrap,
        packages=packages,
        own_wheel=fetch_own_wheel(app),
        project=payload.project,
        client=find_client(app, described, nodes=len(hosts)),
        connections=connections,
        cache=cache_folder(),
        report=app.report,
    )
    source.let_head_in(nodes)
    changed = mount_all(app, nodes, source.describe_mounts(described))
    nodes = tuple(replace(node, changed=True) if node.host.name in changed else node for node in nodes)
    keep_settings(app, nodes, packages=packages)
    folder = nodes[0].project_dir if payload.is_own else nodes[0].code_dir
    return nodes, f"{folder}/{payload.script}"


def collect(app: App, command: Sequence[str], *, is_job: bool, is_sent: bool = True) -> Payload:
    """Reads the user's files for a job. is_sent: says which they are, and asks if they are large. Raises UsageError."""
    config = app.config
    return collect_trees(
        config.train.script,
        sync=config.bootstrap.sync,
        exclude=config.bootstrap.exclude,
        project_dir=app.job_dir,
        report=app.report if is_sent else silent,
        command=command,
        subfolder=config.train.subfolder,
        settings=(app.config_path, *([app.job_file] if app.job_file is not None else [])),
        private=app.config_path if config.notify.webhook is not None else None,
        approve=partial(_approve, app, is_job=is_job) if is_sent else lambda _folders, _found: None,
    )


def read_packages(app: App) -> Requirements:
    """Returns the packages that [bootstrap] asks for. Raises ConfigError for a file that cannot be used."""
    config = app.config.bootstrap
    if app.on_head is not None:
        return app.on_head.packages
    return read_requirements(config.packages, project=config.project, folder=app.project_dir)


def find_requirements(app: App) -> Requirements:
    """Like read_packages, but also warns of those that are ignored, once: on the user's machine."""
    found = read_packages(app)
    if app.on_head is None:
        ignored = (explain_ignored(line, app.config.bootstrap) for line in (*found.lines, *found.limits))
        app.warn(*filter(None, ignored))
        how = "list your packages, and set UV_FIND_LINKS to the folder with its wheel"
        app.warn(*(f'[bootstrap] packages = "here" leaves out {line}: to send it, {how}' for line in found.left))
    return found


def fetch_own_wheel(app: App) -> BundleFile | None:
    """Returns the file that [bootstrap] mxnet names, on this machine; None if it names none. Raises ClusterError."""

    def get_object(url: str, path: Path) -> None:
        from train.s3.operations import get  # noqa: PLC0415 - slow to import, and few configurations need it

        get([url], str(path), region=app.config.provision.region)

    return find_own_wheel(
        app.config.bootstrap.mxnet,
        folder=app.project_dir,
        get_object=get_object,
        cache=cache_folder(),
        report=app.report,
    )


def check_ahead(app: App) -> None:
    """Resolves packages, and fetches a wheel of the user's own, before anything costs money. Raises ClusterError.

    The sandbox's hosts have the Python and the C library of this machine. A head that launches nodes has their
    environment already.
    """
    config = app.config
    if app.on_head is not None:
        return
    fetch_own_wheel(app)
    library, version = platform.libc_ver()
    is_like_this = config.cloud == "sandbox" and library == "glibc"
    major, minor = map(int, version.split(".")[:2]) if is_like_this else LIKELY_GLIBC
    machine = find_machine(config.provision.instance_type)
    check_packages(
        config.bootstrap,
        packages=read_packages(app),
        machine="aarch64" if machine is not None and machine.architecture == "arm64" else "x86_64",
        gpu=machine.gpu if machine is not None and not is_like_this else None,
        pythons=[sys.version_info[:2]] if is_like_this else LIKELY_PYTHONS,
        glibc=(major, minor),
        cache=cache_folder(),
        report=app.report,
    )


def _approve(app: App, folders: Sequence[Path], found: SyncFiles, *, is_job: bool) -> None:
    """Reports which of the user's files are sent, and which .gitignore leaves out; for a job, also if there are none.

    Asks for confirmation if they are large, unless they are named. Raises ClusterError, UsageError.
    """
    size_bytes, what = sum(status.st_size for _, status in found.files.values()), render_files(folders, found)
    if not found.files and not is_job:
        return
    if size_bytes <= ASK_ABOVE_BYTES or app.config.bootstrap.sync != "auto":
        app.report(Event(kind="info", what=f"files for the job: {what}{render_ignored(found)}"))
        return
    hint = (
        "exclude what the job does not need with .gitignore or [bootstrap] exclude; to send everything without a "
        'question, set [bootstrap] sync = ["."]'
    )
    if not app.is_interactive():
        raise UsageError(f"{what} would be sent to every node; this needs a confirmation at a terminal", hint=hint)
    if not app.confirm(f"Send {what} to every node?", yes=False):
        raise ClusterError("nothing was sent", hint=hint)


def render_files(folders: Sequence[Path], found: SyncFiles) -> str:
    """The number of files, their size, and the folders that they are in. Pure."""
    size_bytes = sum(status.st_size for _, status in found.files.values())
    amount = f"{count(len(found.files), 'file')} ({decimal(size_bytes)})" if found.files else "no files"
    return f"{amount} of {' and '.join(map(str, folders))}"


def render_ignored(found: SyncFiles) -> str:
    """What .gitignore files leave out, folders first, without hidden files, caches and jobs' results. Pure."""
    last = {path: path.rstrip("/").rpartition("/")[2] for path in found.ignored}
    names = [path for path, name in last.items() if not (name.startswith(".") or OUR_JOB_ID.fullmatch(name))]
    names.sort(key=lambda name: not name.endswith("/"))
    more = f" and {len(names) - MOST_IGNORED} more" if len(names) > MOST_IGNORED else ""
    return f"; left out by .gitignore: {', '.join(names[:MOST_IGNORED])}{more}" if names else ""


def unmount_before(app: App) -> None:
    """Unmounts [[volumes]] on all running nodes; see unmount_all."""
    unmount_all(app, source_of(app))
