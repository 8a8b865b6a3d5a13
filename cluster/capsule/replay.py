"""Runs the job of a capsule again, on the nodes that cluster.toml has, as `cluster train` does.

From the capsule come the user's files, [train], the framework, packages and image, and [data] url. All else, such as
set-up commands and where results go, is this cluster's.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from posixpath import normpath
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.environment.framework import is_of_framework, is_torch
from bootstrap.environment.requirements import is_mxnet
from cluster.app import App
from cluster.capsule.archive import ALL_FILES, PROGRAM, Ingredients, open_capsule
from cluster.capsule.describe import list_data
from cluster.submission.request import TrainRequest
from cluster.submission.submit import find_registry, submit
from cluster.views.layout import render_table
from foundation.errors import ClusterError
from foundation.remote_command import HIDDEN
from node.engines.engine import Framework
from node.protocol import JobHost, JobSpec, Machine, Order
from node.train_settings import ENVIRONMENTS
from train.job.config import TrainConfig
from train.job.lost_nodes import restore_config

# Keys of [train] that are shown otherwise, or that do not change what a job computes.
_LEFT_OUT = {"args", *ENVIRONMENTS, "hosts", "name", "nodes", "processes", "queue", "restarts", "script", "servers"}
_MOST_ROWS = 30
_PACKAGE = re.compile(r"(?!mxnet_cluster==)[A-Za-z0-9._-]+==[A-Za-z0-9.!+_]+")


def replay(app: App, path: Path, *, dry_run: bool) -> int:
    """Checks a capsule, shows what differs here, and runs its job again. Returns and raises as `submit` does."""
    with open_capsule(path) as (recorded, manifest, folder):
        spec = recorded.spec
        if HIDDEN in render_command(spec) or (spec.project is not None and not any(folder.iterdir())):
            raise ClusterError(f"{path} lacks the job's files, or words of its command, which may be secrets")
        train, warnings = restore_config(app.config.train, spec)
        if not (app.has_instances or app.config.hosts.names):  # here [train] hosts says which hosts the cluster has
            train = replace(train, hosts=app.config.train.hosts)
        for text in (*(f"not in the capsule: {one}" for one in manifest.missing), *warnings):
            app.message(text, style="yellow")
        app.job_dir = folder
        for key, value in {**choose_settings(spec, train), **find_registry(app, spec.image or "")}.items():
            app.override(key, value)

        def show(order: Order, _nodes: Sequence[ReadyNode]) -> None:
            present = Ingredients(spec=order.spec, hosts=order.hosts, program=PROGRAM)
            with suppress(ClusterError):  # then the table has the data as missing
                present = replace(present, data=list_data(app, order.spec))
            (app.print if dry_run else app.message)(render_rows(compare(recorded, present), columns=app.find_columns()))

        request = TrainRequest(overrides={}, command=spec.typed_command)
        return submit(app, request, detach=False, dry_run=dry_run, complete=show)


def choose_settings(spec: JobSpec, train: TrainConfig) -> dict[str, Any]:
    """The values for cluster.toml, by dotted key. train: that of restore_config. Pure."""
    library = spec.library or ""
    found: dict[str, Any] = {f"train.{key}": value for key, value in to_builtins(train).items()}
    script = normpath(spec.train.script)  # from elsewhere, it is in the tree without its folders
    found["train.script"] = script.rpartition("/")[2] if script.startswith(("/", "../")) else script
    found |= {"bootstrap.sync": ["."] if spec.project else [], "bootstrap.exclude": list(ALL_FILES)}
    frameworks: dict[str, Framework] = {"": "none", "none": "none", "torch": "pytorch", "pytorch": "pytorch"}
    framework = frameworks.get(library.partition("==")[0], "mxnet")
    found["bootstrap.framework"] = framework
    found |= {"bootstrap.mxnet": library if is_mxnet(library) and "==" in library else "auto"}
    packages = [one for one in spec.packages if _PACKAGE.fullmatch(one)]
    # The image's own PyTorch is not among them. Which build ("+cpu") it is, the indexes of this machine decide.
    torch = [one.partition("+")[0] for one in packages if is_torch(one)] if framework == "pytorch" else []
    found["bootstrap.torch"] = next(iter(torch), "auto")
    if spec.packages:
        packages = [one for one in packages if not is_of_framework(one, framework)]
        found |= {"bootstrap.packages": packages, "bootstrap.project": ""}
    urls = {"data.url": spec.env["CLUSTER_DATA_URL"]} if "CLUSTER_DATA_URL" in spec.env else {}
    return {**found, **urls, "container.image": spec.image or ""}


def compare(recorded: Ingredients, present: Ingredients) -> list[tuple[str, str, str, str]]:
    """Compares what a job ran with and what it would run with now: (status, name, recorded, here); "-": unknown."""
    before, now = flatten(recorded), flatten(present)
    rows = []
    for name in before | now:
        then, here = before.get(name), now.get(name)
        different = "missing" if here is None else "not recorded" if then is None else "differs"
        if then is not None or here is not None:
            rows.append(("same" if then == here else different, name, then or "-", here or "-"))
    return rows


def flatten(of: Ingredients) -> dict[str, str | None]:
    """The ingredients as text, by names that begin with their kind; None: unknown."""
    spec, train = of.spec, to_builtins(of.spec.train)
    packages = {f"package {name}": version for name, _, version in (one.partition("==") for one in spec.packages)}
    variables = [pair for key in ENVIRONMENTS for pair in train[key].items()]
    environment = re.search(r"/env/([0-9a-f]{64})/", spec.python)
    return {
        "command": render_command(spec),
        "files": spec.project or "none",
        "processes": f"{spec.workers} workers, {spec.servers} servers",
        "environment": environment[1] if environment is not None else spec.python or None,
        "framework": spec.library,
        "image": spec.image or "none",
        "setup": spec.setup or "none",
        "runtime": spec.code,
        "cluster": of.program,
        "NCCL": next((version for name, version in packages.items() if "nvidia_nccl" in name), None),
        "nodes": str(len(of.hosts)),
        **{f"machine {field}": _count(of.hosts, field) for field in Machine.__struct_fields__},
        **packages,
        **{f"[train] {key}": str(value) for key, value in train.items() if key not in _LEFT_OUT},
        **{f"variable {name}": None if HIDDEN in value else value for name, value in variables},
        **{f"data {name or 'in all'}": value for name, value in of.data.items()},
    }


def render_command(spec: JobSpec) -> str:
    """The command, or the script with its arguments, as a user types it."""
    return shlex.join(spec.typed_command or (spec.script or "", *spec.train.args))


def _count(hosts: Iterable[JobHost], field: str) -> str | None:
    """A field of protocol.Machine for all hosts, such as "2x g5.xlarge"; None if it is unknown."""
    values = [getattr(host.machine, field) for host in hosts]
    texts = Counter(", ".join(value) if isinstance(value, tuple) else str(value) for value in values if value)
    return ", ".join(f"{number}x {text}" for text, number in sorted(texts.items())) or None


def render_rows(rows: Sequence[tuple[str, str, str, str]], *, columns: int | None = None) -> str:
    """What is the same, by kind in one line, and a table of the rest. rows: from compare."""
    same = Counter(name.partition(" ")[0] for status, name, *_ in rows if status == "same")
    lines = ["same: " + ", ".join(kind if number == 1 else f"{kind} ({number})" for kind, number in same.items())]
    others = [[cell[:64] for cell in row] for row in rows if row[0] != "same"]  # a digest has as many characters
    if others:
        lines.append(
            render_table([["STATUS", "INGREDIENT", "RECORDED", "HERE"], *others[:_MOST_ROWS]], columns=columns)
        )
    if len(others) > _MOST_ROWS:
        lines.append(f"and {len(others) - _MOST_ROWS} more")
    return "\n".join(lines)
