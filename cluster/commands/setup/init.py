"""`cluster init` and `iam-policy`: the preparations for the first `cluster up`."""

import json
import re
import secrets
import tomllib
import unicodedata
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

import click
from msgspec.structs import replace

from cluster.app import App, pass_app
from cluster.config import ClusterConfig, parse_config
from cluster.folders import find_above
from cluster.project import OwnProject, find_project
from foundation.errors import ClusterError, ConfigError, UsageError
from foundation.files import write_whole
from foundation.schema import make_schema
from foundation.user_folders import cache_folder, find_user
from provision.aws.operator_policy import render_operator_policy
from provision.oracle.tables import find_machine

LONGEST_WORD = 15
"""The most characters of a folder's or a user's name in a cluster's name, which has at most 32."""

TEMPLATES = ("mnist", "cifar10", "imagenet", "torch-mnist")
"""The choices of --template: files NAME.toml in cluster/templates."""

SHORT = """# Settings of one cluster. `cluster -c all.toml init --full` writes all keys, with their defaults.
# docs/configuration.md describes them."""
"""The first lines of a file that has only the keys that most people set."""
SHOWN = {
    ("hosts", "names"),
    ("bootstrap", "packages"),
    ("bootstrap", "exclude"),
    ("train", "script"),
    ("data", "url"),
    ("data", "results"),
}
"""The keys that such a file has as comments, by table."""

quote = partial(json.dumps, ensure_ascii=False)
"""Returns text as TOML writes it, which has no escapes for two halves of a character such as an emoji."""


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
    help="Start from an example: mnist, cifar10 and imagenet train with MXNet, torch-mnist with PyTorch.",
)
@click.option("--instance-type", metavar="TYPE", help="Instance type of the nodes, such as g5.xlarge.")
@click.option("--full", is_flag=True, help="Write all keys, with their defaults as comments.")
@pass_app
def init(
    app: App, *, name: str | None, cloud: str | None, template: str | None, instance_type: str | None, full: bool
) -> None:
    """Write an annotated cluster.toml.

    Without --template, it fits the project in the folder: its script, PyTorch or MXNet, and its packages
    (requirements.txt, pyproject.toml, uv.lock). In an empty folder, it trains train_mnist.py. It has the keys that most
    people set, and with --full all keys. Existing files are left unchanged.
    """
    if full and template:
        raise UsageError("--full is for the file without a template", hint="leave out --template or --full")
    text = _read(f"templates/{template}.toml" if template else "default.toml")
    name = name or choose_name(app.project_dir.name, find_user())
    try:
        parse_config({"name": name}, source="--name")
    except ConfigError as error:
        raise UsageError(error.message, hint=f"cluster init --name {choose_name(name, '')}") from error
    project = find_project(app.config_path.resolve().parent) if template is None else None
    machine = find_machine(instance_type or "")
    has_gpus = machine is not None and machine.gpu is not None
    is_known = machine is not None or not instance_type  # the default type has none
    unfit = None
    version = project.version if project is not None and is_known and cloud != "hosts" else None
    if project is not None and version is not None and not fits_nodes(version, has_gpus=has_gpus):
        unfit, project = version, replace(project, version=None)
    text = render_settings(
        text,
        name=name,
        cloud=cloud,
        instance_type=instance_type,
        suffix=secrets.token_hex(3),
        lines=choose_lines(project) if project is not None else {},
        has_data=project is None,
    )
    if not (full or template):
        text = shorten(text, shown=SHOWN, unused={"provision", "lease"} if cloud == "hosts" else {"hosts"})
    text = f"{_save_schema(app)}{text}"
    _warn_of_place(app)
    written = parse_config(tomllib.loads(text), source="the command line")  # checks the values before they are written
    write_new(app.config_path, text)
    has_instances = written.cloud != "hosts"
    nodes = f"{written.provision.instance_type}, cloud {written.cloud}" if has_instances else "existing hosts"
    app.message(f"wrote {app.config_path}: cluster {written.name}, {nodes}")
    if project is not None:
        app.message(f"your project: {render_project(project)}")
    if unfit is not None:
        why = "would not use the nodes' GPUs" if has_gpus else "needs GPUs, which the nodes do not have"
        app.message(f'{unfit} {why}: [bootstrap] mxnet = "auto" chooses a wheel')
    commands = "cluster up" if template is None else "the commands in its first lines"
    first = "read it" if project is None or project.script is not None else "name your script in [train] script"
    if not has_instances:
        first = f"list your hosts in [hosts] names{' and the data in [data] url' if project is None else ''}"
    app.message(f"next: {first}, then run {commands}")


def _read(name: str) -> str:
    """Returns the text of a file of this package."""
    return files("cluster").joinpath(name).read_text(encoding="utf-8")


def _save_schema(app: App) -> str:
    """Saves the JSON schema in the cache, and returns the line that names it to editors; "" if it cannot be saved.

    Its name has no version, so that the next `init` brings all files' schema up to date.
    """
    path = cache_folder() / "cluster.schema.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(make_schema(ClusterConfig, title="cluster.toml"), indent=1).encode())
    except OSError as error:
        app.warn(f"editors get no schema of cluster.toml: {path}: {error.strerror}")
        return ""
    return f"#:schema {path.as_uri()}\n"


def _warn_of_place(app: App) -> None:
    """Warns of a file that counts for more folders than one project's, or in place of the one above it."""
    folder, above = app.project_dir, find_above(app.config_path)
    if folder in {Path("/"), Path.home().resolve()}:
        what = f"{app.config_path} counts in all folders below {folder} that have none of their own"
        app.warn(f"{what}; a project's folder is a better place")
    elif above is not None:
        app.warn(f"from now on, commands in {folder} use this file, and not {above}")


def write_new(path: Path, text: str) -> None:
    """Writes cluster.toml if it does not exist yet. Raises ClusterError, OSError."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ClusterError(f"{path} exists already; it is left as it is", hint="cluster -c OTHER.toml init") from None
    except OSError as error:
        with suppress(OSError):  # a part of the file, or an empty one, would count as the user's
            path.unlink()
        error.filename = str(path)  # that of a failed write has none
        raise


def choose_name(folder: str, user: str) -> str:
    """Chooses a cluster's name from the names of its folder and its user: "mnist-alice". Pure."""
    plain = (unicodedata.normalize("NFKD", word.casefold()) for word in (folder, user))
    words = [re.sub(r"[^a-z0-9]+", "-", re.sub(r"[\u0300-\u036f]", "", word)).strip("-") for word in plain]
    name = "-".join(word[:LONGEST_WORD].strip("-") for word in words if word)
    return name if name[:1].isalpha() else f"c{name}" if name else "cluster"


def shorten(text: str, *, shown: Collection[tuple[str, str]], unused: Collection[str]) -> str:
    """Returns default.toml with the keys that have a value, and those in `shown`, which are comments. Pure.

    unused: tables to leave out, although they have values.
    """
    table, kept, waiting = "", [SHORT, ""], list[str]()
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if (heading := _TABLE.match(line)) is not None:
            table, waiting = heading[1], ["", line]
        elif found and table not in unused and (not line.startswith("#") or (table, found["key"]) in shown):
            kept += [*waiting, line]
            waiting = []
    return "".join(f"{line}\n" for line in kept)


Lines = Mapping[tuple[str, str], str | None]
"""Values in TOML by table and key; None makes the line a comment."""


def fits_nodes(version: str, *, has_gpus: bool) -> bool:
    """Whether a framework's version runs on the nodes and uses their GPUs. PyTorch's with CUDA run anywhere. Pure."""
    return not version.startswith("mxnet") or ("-cu" in version) == has_gpus


def choose_lines(project: OwnProject) -> dict[tuple[str, str], str | None]:
    """The lines of cluster.toml that fit a project. Pure."""
    lines: dict[tuple[str, str], str | None] = {}
    script = project.script or ("train_mnist_torch.py" if project.framework == "pytorch" else None)
    if script is not None:
        lines = {("train", "script"): quote(script), ("train", "args"): "[]"}
    framework = project.framework or ("mxnet" if project.script is None else "none")
    if framework != "mxnet":
        lines |= {("bootstrap", "framework"): quote(framework), ("train", "kv_store"): None}
    if framework == "pytorch":
        lines["train", "launcher"] = '"torchrun"'
    if project.version is not None:
        lines["bootstrap", project.version.partition("==")[0].partition("-")[0]] = quote(project.version)
    if project.packages:
        lines["bootstrap", "packages"] = json.dumps(list(project.packages))
    if project.locked:
        lines["bootstrap", "project"] = '"."'
    return lines


def render_project(project: OwnProject) -> str:
    """What was found in the folder, in a few words. Pure."""
    found = [project.script] if project.script is not None else []
    names = {"mxnet": "MXNet", "pytorch": "PyTorch", None: "neither PyTorch nor MXNet"}
    found.append(f"{names.get(project.framework)}{f' ({project.why})' if project.why else ''}")
    found += [project.version] if project.version is not None else []
    found += [entry.removeprefix("-r ") for entry in project.packages]
    return ", ".join([*found, *(["uv.lock"] if project.locked else [])])


def render_settings(
    text: str,
    *,
    name: str,
    cloud: str | None,
    instance_type: str | None,
    suffix: str,
    lines: Lines = MappingProxyType({}),
    has_data: bool = True,
) -> str:
    """Returns default.toml, or a template, with these settings. Pure.

    suffix: makes the bucket's name unique, because all AWS accounts share one namespace for buckets. lines: see Lines.
    has_data: the file's script, one of this project, reads [data] url; otherwise, the key is a comment.
    """
    given = {("", "name"): name, ("", "cloud"): cloud, ("provision", "instance_type"): instance_type}
    chosen: dict[tuple[str, str], str | None] = {
        setting: quote(value) for setting, value in given.items() if value is not None
    }
    # Data in S3 would need AWS credentials, and a lease cannot end existing hosts.
    if cloud == "hosts" or not has_data:
        chosen["data", "url"] = None
    if cloud == "hosts":
        chosen |= {("data", "results"): None, ("lease", "idle"): None}
    chosen |= lines
    table, written = "", []
    for line in text.replace("s3://cluster-demo/", f"s3://cluster-{name}-{suffix}/").splitlines():
        if (heading := _TABLE.match(line)) is not None:
            table = heading[1]
        found = _LINE.fullmatch(line)
        setting = (table, found["key"]) if found is not None else None
        written.append(line if setting not in chosen or found is None else _render_line(found, chosen.pop(setting)))
    return "".join(f"{line}\n" for line in written)


_TABLE = re.compile(r"\[([a-z]+)\]")
_LINE = re.compile(r"(?:# )?(?P<key>[a-z_]+) = (?P<value>.*?)(?P<gap> +)?(?P<comment># .*)?")


def _render_line(found: re.Match[str], value: str | None) -> str:
    """A line with another value, and its comment where it was; for None, the line as a comment."""
    if value is None:
        return f"# {found[0].removeprefix('# ')}"
    line = f"{found['key']} = {value}"
    if found["comment"] is None or found["key"] == "script":  # the comment tells what the template's script is
        return line
    return f"{line:<{found.start('comment')}}{'' if len(line) < found.start('comment') else '  '}{found['comment']}"


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
        app.message(
            "note: anyone who may create the nodes' role can give it any permission. To avoid this, have an "
            "administrator create the instance profile, and name it in [provision] instance_profile"
        )
    elif profile != "none":
        app.message(
            f"note: iam:PassRole is allowed for the role {profile}, which must have its instance profile's name"
        )
