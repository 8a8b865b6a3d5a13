"""Installs this project's own command on the head, which replaces lost nodes while no other command runs.

The head gets the program and its settings: cluster.toml without secrets, and this machine's knowledge of the nodes. The
head has the permissions of its instance role, and logs in to nodes with its own key. The user's private key stays here.
"""

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from bootstrap.apply import ReadyNode, find_cluster_key
from bootstrap.environment.bundle import find_python_records, find_records
from bootstrap.environment.file_cache import render_record
from bootstrap.environment.requirements import Requirements
from bootstrap.environment.target import is_wheel_file
from bootstrap.ssh.keys import authorized_line
from bootstrap.transfer.tree import Tree, file_of_bytes, make_tree
from cluster.app import App
from cluster.config import ClusterConfig, read_table
from cluster.nodes.source import Nodes
from foundation.errors import ClusterError
from foundation.progress import Event
from foundation.remote_command import RemoteCommand
from foundation.user_folders import cache_folder
from node.train_settings import ENVIRONMENTS
from provision.model import SshAddress

FOLDER = ".cluster/replace"
"""The folder on the head, in the user's home."""
STATE = "files"
"""In FOLDER: the records of the head's command, such as the instances that it launched (provision/files.py)."""
PACKAGES = ("bootstrap", "cluster", "foundation", "mxnet_cluster", "node", "provision", "train")
MODULES = tuple(f"ec2_sandbox/{name}.py" for name in ("__init__", "config", "errors", "progress", "sudo"))
"""The modules, besides the packages, that the command imports without a sandbox."""
START = b"""\
import sys

from cluster.recovery.on_head import main

sys.exit(main(sys.argv[1:]))
"""
# Tables and keys of cluster.toml that may contain secrets, or that only the user's machine needs.
_LEFT_OUT = ("cloud", "hosts", "notify", "sandbox")
_LEFT_OUT_OF_TRAIN = ("args", *ENVIRONMENTS, "script")
SETTINGS_TIMEOUT_S = 60.0


class HeadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings from the user's machine for a command on the head: the file ~/.cluster/replace/settings.json."""

    table: dict[str, Any]  # cluster.toml, without secrets
    overrides: dict[str, Any]  # the command line, without secrets
    region: str
    line: str  # of authorized_keys: lets the head log in to new nodes
    ssh_address: SshAddress  # for the user's access to nodes; the head uses their private addresses
    packages: Requirements  # of [bootstrap] packages and project
    public_key: str  # the public half of the user's key for the nodes
    launch_key: bytes  # signs the tokens of the head's launches (provision/membership.py)
    pins: str  # the nodes' host keys, in the format of known_hosts
    instances: tuple[str, ...]  # the ids of the instances that the user's machine knows
    records: dict[str, str]  # those of the cache of wheels, by key
    endpoint_url: str | None = None  # AWS_ENDPOINT_URL
    private_ca: bool = False  # whether its certificate is signed by a private CA


def find_client(app: App, described: Nodes, *, nodes: int) -> Tree | None:
    """Returns the program for the head; None if the head does not replace nodes.

    If the head's role allows it but something else prevents it, report that. described: the cluster's nodes. nodes: how
    many are set up; a lone node cannot be replaced.
    """
    config = app.config
    if app.on_head is not None:
        return None  # the head has the program already
    if config.provision.instance_profile != "auto" or config.train.on_node_loss != "requeue" or nodes <= 1:
        return None
    if described.state is None or described.state.head is None or described.state.head.profile_arn is None:
        return None
    why = find_obstacle(config)
    if why is not None:
        app.report(Event(kind="info", what=f"the head does not replace lost nodes by itself: {why}"))
        return None
    return read_client()


def find_obstacle(config: ClusterConfig) -> str | None:
    """Returns why the head cannot replace nodes, although its role allows it; None if it can. Pure."""
    if config.volumes:
        return "a new node's [[volumes]] need this machine's credentials"
    if is_wheel_file(config.bootstrap.mxnet):
        return "a new node's MXNet, which is a file, is sent by this machine"
    return None


def read_client() -> Tree:
    """Returns the files of the program: a folder that Python can run."""
    found = {"__main__.py": START}
    for package in PACKAGES:
        folder = Path(str(files(package)))
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found[f"{package}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    for module in MODULES:
        package, _, name = module.partition("/")
        found[module] = Path(str(files(package).joinpath(name))).read_bytes()
    # Their versions are part of an environment's name. The head has uv's program already.
    for name in ("uv", "mxnet-cluster"):
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version(name)}\n"
        found[f"{name.replace('-', '_')}-{version(name)}.dist-info/METADATA"] = about.encode()
    return make_tree(file_of_bytes(path, data) for path, data in found.items())


def keep_settings(app: App, nodes: Sequence[ReadyNode], *, packages: Requirements) -> None:
    """Writes the settings to the head if it has the program. A failure is a warning."""
    head = nodes[0]
    if not head.client:
        return
    try:
        data = msgspec.json.encode(make_settings(app, nodes, packages=packages))
        _write(head, data)
    except ClusterError as error:
        app.warn(f"it cannot replace lost nodes by itself, cluster up does: {error.message}", where=head.host.name)


def make_settings(app: App, nodes: Sequence[ReadyNode], *, packages: Requirements) -> HeadSettings:
    """Returns the settings for the head, the first of the nodes. Raises ClusterError."""
    head, config = nodes[0], app.config
    known = app.files.known_instances()
    table, overrides = leave_secrets_out(read_table(app.config_path), app.overrides)
    files_of = find_python_records([node.facts.machine for node in nodes], cache=cache_folder())
    for node in nodes:
        if node.bundle is not None:
            files_of |= find_records(node.bundle)
    records = {key: render_record(found) for key, found in files_of.items()}
    return HeadSettings(
        table=table,
        overrides=overrides,
        region=config.provision.region,
        line=authorized_line(find_cluster_key(head), head_ip=head.host.private_ip),
        ssh_address=config.provision.ssh_address,
        packages=packages,
        public_key=known.public_key or "",
        launch_key=known.launch_key or b"",
        pins=app.files.known_hosts.read_text("ascii", errors="replace"),
        instances=tuple(sorted(known.instance_ids)),
        records=records,
        endpoint_url=os.environ.get("AWS_ENDPOINT_URL"),
        private_ca=bool(os.environ.get("AWS_CA_BUNDLE")),
    )


def leave_secrets_out(table: Mapping[str, Any], overrides: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns cluster.toml and the command line's values for the head, without possible secrets. Pure."""
    kept = {key: value for key, value in table.items() if key not in _LEFT_OUT}
    if isinstance(kept.get("train"), dict):
        kept["train"] = {key: value for key, value in kept["train"].items() if key not in _LEFT_OUT_OF_TRAIN}
    dropped = (*_LEFT_OUT, *(f"train.{key}" for key in _LEFT_OUT_OF_TRAIN))

    def is_kept(dotted: str) -> bool:
        return not any(dotted == key or dotted.startswith(f"{key}.") for key in dropped)

    return kept, {dotted: value for dotted, value in overrides.items() if is_kept(dotted)}


def _write(head: ReadyNode, data: bytes) -> None:
    """Writes settings.json. Raises NodeCommandError, ConnectError."""
    path = f"{FOLDER}/settings.json"
    script = f"umask 077 && mkdir -p {FOLDER} && cat >{path}.new && mv {path}.new {path}"
    head.connection.run(
        RemoteCommand(script), stdin=data, timeout_s=SETTINGS_TIMEOUT_S, what="the settings for lost nodes"
    )
