"""Help screens in a terminal of 80 columns."""

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from cluster.commands import COMMANDS, HABITS, SECTIONS
from cluster.main import cli


def paths(group: click.Group = cli, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Returns every command, as a tuple of words."""
    yield above
    for name in group.list_commands(click.Context(group)):
        _, command, _ = group.resolve_command(click.Context(group), [name])
        if isinstance(command, click.Group):
            yield from paths(command, (*above, name))
        else:
            yield (*above, name)


@pytest.mark.parametrize("words", list(paths()), ids=" ".join)
def test_no_line_is_longer_than_the_screen(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*words, "--help"], terminal_width=80).output
    assert shown.startswith("Usage: ")
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_the_commands_are_listed_under_headings() -> None:
    shown = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    assert re.findall(r"^(\S.*):$", shown, re.MULTILINE) == ["Options", *SECTIONS]
    assert re.findall(r"^  ([a-z][a-z-]*)  ", shown, re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("word", list(HABITS))
def test_the_commands_of_other_programs_lead_to_ours(word: str) -> None:
    assert word not in COMMANDS
    for line in re.findall(r"cluster ([a-z-]+)", HABITS[word]):
        assert line in COMMANDS or line.startswith("--"), line
