"""What a shell completes."""

import json
import subprocess
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from cluster.commands import COMMANDS
from cluster.completion import VARIABLE, describe_shape, load_command, make_shape
from cluster.main import cli

FILE = """
name = "demo"
[provision]
nodes = 12
[data]
url = "s3://bucket/digits/"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder below cluster.toml, with a script."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cluster.toml").write_text(FILE)
    below = tmp_path / "below"
    below.mkdir()
    (below / "my_own.py").touch()
    monkeypatch.chdir(below)
    return below


def complete(*words: str) -> list[str]:
    """Returns the completions of the last word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMP_WORDS", " ".join(("cluster", *words)))
        patch.setenv("COMP_CWORD", str(len(words)))
        messages = BashComplete(cli, {}, "cluster", VARIABLE).complete()
    return [line.partition(",")[2] for line in messages.splitlines()]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("data", "p"), ["pack", "put"]),
        (("train", "--kv-store", "dist_s"), ["dist_sync", "dist_sync_device"]),
        (("train", "my"), ["my_own.py"]),
        (("ssh", "node-1"), ["node-1", "node-10", "node-11"]),
        (("exec", "--node", "node-11"), ["node-11"]),
        (("cp", "./"), ["./"]),
        (("data", "get", "s3"), ["s3://bucket/digits/"]),
        (("up", "--ke"), ["--keep-failed"]),
    ],
)
@pytest.mark.usefixtures("folder")
def test_words(words: tuple[str, ...], found: list[str]) -> None:
    assert complete(*words) == found


@pytest.mark.parametrize(
    "name", ["a$(id)", "a`id`", "a;id", "a b", "a'", 'a"', "a\nplain,b", "a\\", "a*", "-oProxyCommand=id"]
)
def test_names_that_a_shell_would_run(folder: Path, name: str) -> None:
    """bash adds a completion to the line as it is; it completes and quotes the names of files itself."""
    hosts = f"[hosts]\nnames = [{json.dumps(name)}]\n[data]\nurl = {json.dumps(name)}\n"
    (folder.parent / "cluster.toml").write_text(hosts)
    (folder / f"{name}.py").touch()
    assert complete("ssh", "") == []
    shown = [*complete("data", "get", ""), *complete("train", "")]
    assert not any(name in word for word in shown)
    assert complete("train", "m") == ["my_own.py"]


def test_the_shape_of_every_command_is_its_own() -> None:
    """The cached description of a command has the same options, in the same order, and the same subcommands."""
    for name, (place, _) in COMMANDS.items():
        command = load_command(place)
        check_shape(name, command, make_shape(name, json.loads(json.dumps(describe_shape(command), default=str))))


def check_shape(name: str, command: click.Command, shape: click.Command) -> None:
    if isinstance(command, click.Group):
        assert isinstance(shape, click.Group)
        context = click.Context(command)
        below = {each: command.resolve_command(context, [each])[1] for each in command.list_commands(context)}
        assert sorted(shape.commands) == sorted(below)
        for each, found in below.items():
            assert found is not None
            check_shape(f"{name} {each}", found, shape.commands[each])
        return
    given = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    for ours, kept in zip(given, shape.params, strict=True):
        assert (ours.opts, ours.nargs, ours.multiple) == (kept.opts, kept.nargs, kept.multiple), name
        assert type(ours) is type(kept), name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts(shell: str) -> None:
    script = CliRunner().invoke(cli, ["completion", shell]).output
    assert f"_CLUSTER_COMPLETE={shell}_complete" in script
    if shell == "bash":
        asked = f"{script}\necho [$COMP_WORDBREAKS]"
        breaks = subprocess.run(["bash", "-eu"], input=asked, capture_output=True, text=True, check=True).stdout
        assert ":" not in breaks.rpartition("[")[2], "an s3:// URL is one word"
    if shell == "fish":
        assert 'string split ","' not in script, "a description ends at its first comma"
