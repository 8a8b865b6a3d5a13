"""Every hint in the tables of known mistakes is applied: the text that it tells the user to type works.

A hint puts such text between backticks: a command, keys of cluster.toml, options of `cluster train` or of the scripts
that ship with the project. The tests also fail for a hint that has one of these outside of backticks.
"""

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from cluster.commands import COMMANDS
from cluster.commands.job.train import train as train_command
from cluster.config import ClusterConfig, parse_config
from cluster.main import cli
from foundation.settings import describe_settings
from node.causes.cause import ENDINGS
from node.causes.mistakes import read_mistakes
from training_scripts import script_modules

HINTS = sorted({mistake.advice for mistake in read_mistakes()} | {*ENDINGS.values()})
FRAGMENT = re.compile(r"`([^`]+)`")
SETTING = re.compile(r"\[(\w+)\] (\w+)( = .*)?")
with script_modules("common.options") as (_options,):
    OF_SCRIPTS = {f"--{name}" for group in _options.GROUPS.values() for name, *_ in group}
# Text that must not occur outside of backticks.
BARE = re.compile(rf"\[\w+\] \w|\w = \S|(?<![\w-])--?[a-z]{{2,}}|\bcluster ({'|'.join(COMMANDS)})\b")


def check_setting(table: str, key: str, value: str | None) -> None:
    tables = {name: setting.table for name, setting in describe_settings(ClusterConfig).items()}
    known = tables.get(table)
    assert known is not None
    assert key in describe_settings(known)
    if value is not None:
        parse_config(tomllib.loads(f'name = "demo"\n[{table}]\n{key}{value}\n'), source="cluster.toml")


def check_command(words: list[str]) -> None:
    context = click.Context(cli)
    command: click.Command = cli
    while isinstance(command, click.Group):
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
    command.make_context("cluster", words, parent=context)


def check_options(words: list[str]) -> None:
    """Checks that `cluster train` accepts these options with their values, or that the scripts have them."""
    known = {name for parameter in train_command.params for name in parameter.opts}
    if words[0] in known and len(words) > 1:
        check_command(["train", *words])
    else:
        assert words[0] in known | OF_SCRIPTS


def apply(fragment: str) -> None:
    """Carries out a fragment as far as possible without a cluster. Raises an error if the fragment is wrong."""
    setting = SETTING.fullmatch(fragment)
    if setting is not None:
        check_setting(setting[1], setting[2], setting[3])
        return
    words = shlex.split(fragment)
    if words[0] == "cluster":
        check_command(words[1:])
    else:
        assert words[0].startswith("--"), f"`{fragment}` is neither a command, nor a setting, nor an option"
        check_options(words)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "FOLDER").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("hint", HINTS)
def test_what_a_hint_says_works(hint: str) -> None:
    assert hint.count("`") % 2 == 0
    for fragment in FRAGMENT.findall(hint):
        apply(fragment)
    bare = BARE.search(FRAGMENT.sub("", hint))
    assert bare is None, f"{bare[0]!r} must stand between backticks, to be tested"
