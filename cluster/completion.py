"""Shell completion that neither imports the commands' modules nor uses the network.

Importing a command's module to find its options takes up to half a second. Therefore the options are cached as JSON,
and read from the module only after the program has changed.
"""

import importlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from cluster.folders import find_above
from foundation.errors import ClusterError
from foundation.files import read_bounded, write_whole
from foundation.toml import MOST_BYTES, parse_toml
from foundation.user_folders import cache_folder

VARIABLE = "_CLUSTER_COMPLETE"
"""The environment variable that click's completion scripts set when they call `cluster`."""
SCRIPTS_DIR = Path(__file__).parents[1] / "train" / "scripts"
MOST_NODES = 50
_COMMANDS = Path(__file__).parent / "commands"
# bash adds a completion to the line as it is: a name from a folder of others must be no command, and no option.
_PLAIN = re.compile(r"(?!-)[\w@%+=:,./-]+")
PROGRAM = (Path(__file__).parent, _COMMANDS, _COMMANDS / "data", _COMMANDS / "job", _COMMANDS / "setup")


class Name(click.ParamType[str]):
    """An argument that completes names, and also accepts any other word.

    find: returns the names, for the path of cluster.toml. files: the shell completes files if no name matches.
    """

    def __init__(self, name: str, find: Callable[[Path], Iterable[str]], *, files: bool = False) -> None:
        self.name = name
        self._find = find
        self._files = files

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Returns the word unchanged."""
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Returns the names that begin with `incomplete`, except those that a shell would not take as they are."""
        given = ctx.find_root().params.get("config_path") or Path("cluster.toml")
        names = filter(_PLAIN.fullmatch, self._find(find_above(given) or given))
        found = [name for name in names if name.startswith(incomplete)]
        if self._files and not found:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(name) for name in dict.fromkeys(found)]


def _find_nodes(config_path: Path) -> list[str]:
    config = _read_config(config_path)
    hosts = config.get("hosts", {}).get("names", [])
    if hosts and isinstance(hosts, list):  # in "me@gpu1:2222", the node's name is in the middle
        named = [host.rpartition("@")[2].partition(":")[0] for host in hosts if isinstance(host, str)]
        return list(dict.fromkeys(named))
    nodes = config.get("provision", {}).get("nodes", 0)
    return [f"node-{number}" for number in range(min(nodes, MOST_NODES))] if isinstance(nodes, int) else []


def _find_urls(config_path: Path) -> list[str]:
    data = _read_config(config_path).get("data", {})
    return [url for url in (data.get("url"), data.get("results")) if isinstance(url, str)]


def _find_scripts(_: Path) -> list[str]:
    here = sorted(path.name for path in Path.cwd().glob("*.py"))
    return [*here, *sorted(path.name for path in SCRIPTS_DIR.rglob("train_*.py"))]


def _read_config(path: Path) -> dict[str, Any]:
    """Returns the tables of cluster.toml, unchecked: the check needs libraries that take too long to import."""
    try:
        found = parse_toml(read_bounded(path, most_bytes=MOST_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, dict)}


NODE = Name("node", _find_nodes)
NODE_OR_FILE = Name("node or file", lambda path: [f"{name}:" for name in _find_nodes(path)], files=True)
SCRIPT = Name("script", _find_scripts, files=True)
FILE_OR_URL = Name("file or URL", _find_urls, files=True)
NAMES = {each.name: each for each in (NODE, NODE_OR_FILE, SCRIPT, FILE_OR_URL)}


def load_command(reference: str) -> click.Command:
    """Returns the command at "module:attribute"."""
    module, _, attribute = reference.partition(":")
    command: click.Command = getattr(importlib.import_module(module), attribute)
    return command


def load_shape(reference: str) -> click.Command:
    """Returns a command with the options and arguments of the one at "module:attribute", for completion."""
    path, key = cache_folder() / "completion.json", _program_key()
    shapes: dict[str, Any] = {}
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        known = json.loads(read_bounded(path))
        if known["program"] == key:
            shapes = known["shapes"]
            return make_shape(reference, shapes[reference])
    # None is known, or the file is damaged.
    shapes = {**(shapes if isinstance(shapes, dict) else {}), reference: describe_shape(load_command(reference))}
    with suppress(OSError, ClusterError):  # without it, completion is slower
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"program": key, "shapes": shapes}, default=str).encode())
    return make_shape(reference, shapes[reference])


def _program_key() -> str:
    """Returns a key that changes when the commands change."""
    newest = max(entry.stat().st_mtime_ns for folder in PROGRAM for entry in os.scandir(folder) if entry.is_file())
    return f"{PROGRAM[0]} {newest}"


def describe_shape(command: click.Command) -> dict[str, Any]:
    """Describes a command's options and arguments, or a group's commands, for JSON. Pure."""
    shape = command.to_info_dict(click.Context(command))
    shape |= {"short_help": command.get_short_help_str(), "settings": command.context_settings}
    if isinstance(command, click.Group):
        table: Mapping[str, tuple[str, str]] = getattr(command, "table", {})
        below = {name: load_command(reference) for name, (reference, _) in table.items()} or command.commands
        shape["commands"] = {name: describe_shape(each) for name, each in below.items()}
    return shape


def make_shape(name: str, shape: Mapping[str, Any]) -> click.Command:
    """Creates a command from its description; the reverse of describe_shape."""
    settings = {"context_settings": shape["settings"], "short_help": shape["short_help"]}
    if "commands" in shape:
        commands = {each: make_shape(each, below) for each, below in shape["commands"].items()}
        return click.Group(name, commands, **settings)
    shown = [each for each in shape["params"] if not each.get("hidden") and "--help" not in each["opts"]]
    return click.Command(name, params=[_make_parameter(each) for each in shown], **settings)


def _make_parameter(shape: Mapping[str, Any]) -> click.Parameter:
    if shape["param_type_name"] == "argument":
        return click.Argument([shape["name"]], nargs=shape["nargs"], type=_make_type(shape["type"]), required=False)
    words = [shape["name"], *shape["opts"]]
    if shape["secondary_opts"]:  # --shuffle/--no-shuffle
        words = [*words[:-1], "/".join([words[-1], *shape["secondary_opts"]])]
    if shape["count"] or shape["is_flag"]:
        return click.Option(words, help=shape["help"], count=shape["count"], is_flag=shape["is_flag"])
    return click.Option(words, help=shape["help"], multiple=shape["multiple"], type=_make_type(shape["type"]))


def _make_type(shape: Mapping[str, Any]) -> click.ParamType[Any] | None:
    if shape["param_type"] == "Choice":
        return click.Choice(shape["choices"])
    if shape["param_type"] == "Path":
        return click.Path(file_okay=shape["file_okay"])
    return NAMES.get(shape["name"])
