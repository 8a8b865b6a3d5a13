"""What a shell completes. The tests ask as the scripts of the shells do."""

import json
import os
import subprocess
from pathlib import Path

import click
import pytest

from cluster.commands import COMMANDS
from cluster.completion import describe_shape, load_command, make_shape
from project import CLUSTER


def complete(folder: Path, *words: str) -> list[str]:
    """Returns the completions of the last word."""
    env = {
        **os.environ,
        "_CLUSTER_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("cluster", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run([CLUSTER], cwd=folder, env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


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
        (("sandbox", "fault", "thr"), ["throttle"]),
        (("up", "--ke"), ["--keep-failed"]),
    ],
)
def test_words(tmp_path: Path, words: tuple[str, ...], found: list[str]) -> None:
    write_project(tmp_path)
    assert complete(tmp_path / "below", *words) == found


def write_project(folder: Path) -> None:
    """Writes cluster.toml and a script, and a folder with another script."""
    description = 'name = "demo"\n[provision]\nnodes = 12\n[data]\nurl = "s3://bucket/digits/"\n'
    (folder / "cluster.toml").write_text(description)
    for each in (folder, folder / "below"):
        each.mkdir(exist_ok=True)
        (each / "my_own.py").touch()


def test_a_damaged_cache_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "cluster").mkdir()
    for text in ("{", '{"program": 3, "shapes": {}}'):
        (tmp_path / "cluster" / "completion.json").write_text(text)
        assert complete(tmp_path, "up", "--ke") == ["--keep-failed"]


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
        if isinstance(ours, click.Option) and isinstance(kept, click.Option):
            assert (ours.is_flag, ours.help, ours.secondary_opts) == (kept.is_flag, kept.help, kept.secondary_opts), (
                name
            )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts(tmp_path: Path, shell: str) -> None:
    done = subprocess.run([CLUSTER, "completion", shell], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"_CLUSTER_COMPLETE={shell}_complete" in done.stdout
    if shell == "bash":
        asked = f"{done.stdout}\necho [$COMP_WORDBREAKS]"
        breaks = subprocess.run(["bash", "-eu"], input=asked, capture_output=True, text=True, check=True).stdout
        assert ":" not in breaks.rpartition("[")[2], "an s3:// URL is one word"
    if shell == "fish":
        assert 'string split ","' not in done.stdout, "a description ends at its first comma"
