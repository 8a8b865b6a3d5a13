"""Runs the job of a capsule again, on the nodes that cluster.toml has, as `cluster train` does.

From the capsule come the user's files, [train], the framework, packages and image, and [data] url. All else, such as
set-up commands and where results go, is this cluster's.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from posixpath import normpath
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.environment.requirements import is_mxnet
from cluster.app import App
from cluster.capsule.archive import ALL_FILES, PROGRAM, open_capsule
from cluster.capsule.contents import Ingredients, compare, render_command, render_rows
from cluster.capsule.describe import list_data
from cluster.submission.request import TrainRequest
from cluster.submission.submit import find_registry, submit
from foundation.errors import ClusterError
from foundation.remote_command import HIDDEN
from node.protocol import JobSpec, Order
from train.job.config import TrainConfig
from train.job.lost_nodes import restore_config

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
    framework = {"": "none", "none": "none", "torch": "pytorch", "pytorch": "pytorch"}
    found |= {"bootstrap.framework": framework.get(library.partition("==")[0], "mxnet"), "bootstrap.torch": "auto"}
    found |= {"bootstrap.mxnet": library if is_mxnet(library) and "==" in library else "auto"}
    if spec.packages:
        packages = [one for one in spec.packages if _PACKAGE.fullmatch(one) and not is_mxnet(one)]
        found |= {"bootstrap.packages": packages, "bootstrap.project": ""}
    urls = {"data.url": spec.env["CLUSTER_DATA_URL"]} if "CLUSTER_DATA_URL" in spec.env else {}
    return {**found, **urls, "container.image": spec.image or ""}
