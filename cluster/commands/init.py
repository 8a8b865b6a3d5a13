"""`cluster init` and `iam-policy`: the preparations for the first `cluster up`."""

import json
import re
import secrets
import tomllib
from importlib.resources import files
from pathlib import Path

import click

from cluster.app import App, pass_app
from cluster.config import parse_config
from foundation.errors import ClusterError, ConfigError, UsageError
from foundation.user_folders import find_user
from provision.aws.operator_policy import render_operator_policy

LONGEST_WORD = 15
"""The most characters of a folder's or a user's name in a cluster's name, which has at most 32."""


TEMPLATES = ("mnist", "cifar10", "imagenet", "torch-mnist", "torch-own")
"""The choices of --template: files NAME.toml in cluster/templates."""

SCRIPTS = {"torch-own": "train.py"}
"""The script that `init` writes next to cluster.toml, by template."""


@click.command("init")
@click.option("--name", metavar="NAME", help="Name of the cluster; default: FOLDER-USER.")
@click.option(
    "--cloud",
    type=click.Choice(["sandbox", "aws", "hosts"]),
    help="Where the cluster runs; default: the template's, or sandbox.",
)
@click.option(
    "--template",
    type=click.Choice(TEMPLATES),
    help="Start from an example: mnist, cifar10 and imagenet train with MXNet, torch-mnist with PyTorch; torch-own is "
    "for your own PyTorch script, and writes a small train.py.",
)
@click.option("--instance-type", metavar="TYPE", help="Instance type of the nodes, such as g5.xlarge.")
@pass_app
def init(app: App, *, name: str | None, cloud: str | None, template: str | None, instance_type: str | None) -> None:
    """Write an annotated cluster.toml.

    Without --template, it has all keys, and trains train_mnist.py on two nodes. Existing files are left unchanged.
    """
    text = _read(f"templates/{template}.toml" if template else "default.toml")
    name = name or choose_name(app.project_dir.name, find_user())
    try:
        parse_config({"name": name}, source="--name")
    except ConfigError as error:
        raise UsageError(error.message, hint=f"cluster init --name {choose_name(name, '')}") from error
    text = render_settings(
        text,
        name=name,
        cloud=cloud,
        instance_type=instance_type,
        suffix=secrets.token_hex(3),
    )
    written = parse_config(tomllib.loads(text), source="the command line")  # checks the values before they are written
    script = SCRIPTS.get(template or "")
    script_path = app.config_path.parent / script if script else None
    if script_path is not None and script_path.exists():
        raise _exists(script_path, hint=f"rename it, or leave out --template {template} and name it in [train] script")
    _write_new(app.config_path, text, hint="cluster -c OTHER.toml init")
    has_instances = written.cloud != "hosts"
    nodes = f"{written.provision.instance_type}, cloud {written.cloud}" if has_instances else "existing hosts"
    app.say(f"wrote {app.config_path}: cluster {written.name}, {nodes}")
    if script_path is not None:
        _write_new(script_path, _read(f"templates/{script}"), hint=f"rename it, and write {script} yourself")
        app.say(f"wrote {script_path}: the script that this cluster trains")
    commands = "cluster up" if template is None else "the commands in its first lines"
    first = "read it" if has_instances else "list your hosts in [hosts] names"
    app.say(f"next: {first}, then run {commands}")


def _read(name: str) -> str:
    """Returns the text of a file of this package."""
    return files("cluster").joinpath(name).read_text(encoding="utf-8")


def _write_new(path: Path, text: str, *, hint: str) -> None:
    """Writes a file that does not exist yet. Raises ClusterError. hint: for a file that exists."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise _exists(path, hint=hint) from None
    except OSError as error:
        raise ClusterError(f"{path} cannot be written: {error}") from error


def _exists(path: Path, *, hint: str) -> ClusterError:
    return ClusterError(f"{path} exists already; it is left as it is", hint=hint)


def choose_name(folder: str, user: str) -> str:
    """Chooses a cluster's name from the names of its folder and its user: "mnist-alice". Pure."""
    words = [re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") for word in (folder, user)]
    name = "-".join(word[:LONGEST_WORD].strip("-") for word in words if word).lstrip("0123456789-")
    return name or "cluster"


def render_settings(text: str, *, name: str, cloud: str | None, instance_type: str | None, suffix: str) -> str:
    """Returns default.toml, or a template, with these settings. Pure.

    suffix: makes the bucket's name unique, because all AWS accounts share one namespace for buckets.
    """
    text = text.replace("s3://cluster-demo/", f"s3://cluster-{name}-{suffix}/")
    given = {"name": name, "cloud": cloud, "instance_type": instance_type}
    lines = text.splitlines(keepends=True)
    for key, value in given.items():
        for number, line in enumerate(lines):
            if value is not None and line.startswith(f"{key} = "):
                old = line.partition(" = ")[2].partition('"')[2].partition('"')[0]
                lines[number] = line.replace(f'"{old}"', json.dumps(value), 1)
    if cloud == "hosts":  # data in S3 would need AWS credentials, and a lease cannot end existing hosts
        lines = [f"# {line}" if line.startswith(('url = "s3://', "idle = ")) else line for line in lines]
    return "".join(lines)


@click.command("iam-policy")
@click.option("--all-clusters", is_flag=True, help="Cover clusters of any name in the region.")
@pass_app
def iam_policy(app: App, *, all_clusters: bool) -> None:
    """Print the minimal IAM policy that you need.

    It allows only what this program does in AWS, for the cluster, region and buckets in cluster.toml. It is for the
    person who runs these commands, not for the nodes. This command does not call AWS.
    """
    config = app.config
    profile = config.provision.instance_profile
    app.print(
        render_operator_policy(
            config.provision,
            name=None if all_clusters else config.name,
            data_url=config.data.s3_url,
            results_url=config.data.s3_results,
            volumes=config.volumes,
        ),
        wrapped=False,
    )
    if profile == "auto":
        app.say(
            "note: anyone who may create the nodes' role can give it any permission. To avoid this, have an "
            "administrator create the instance profile, and name it in [provision] instance_profile"
        )
    elif profile != "none":
        app.say(f"note: iam:PassRole is allowed for the role {profile}, which must have its instance profile's name")
