"""Every command, option and key is documented, and what the documents say exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cluster.commands import COMMANDS
from cluster.config import ClusterConfig
from cluster.main import INTERRUPTED, cli
from foundation import errors
from foundation.settings import describe_settings

REPOSITORY = Path(__file__).parents[3]
README = (REPOSITORY / "README.md").read_text()
CONFIGURATION = (REPOSITORY / "docs" / "configuration.md").read_text()
COMMAND_LINE = (REPOSITORY / "docs" / "commands.md").read_text()


def commands(group: click.Group = cli) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", found) for below, found in commands(command))
        else:
            yield name, command


def keys() -> Iterator[tuple[str, str]]:
    for name, setting in describe_settings(ClusterConfig).items():
        if setting.table is None:
            yield "", name
        else:
            yield from ((name, key) for key in describe_settings(setting.table))


def section(text: str, heading: str) -> str:
    return text.partition(heading)[2].partition("\n## ")[0]


@pytest.mark.parametrize(("table", "key"), list(keys()))
def test_every_key_of_cluster_toml_is_documented(table: str, key: str) -> None:
    heading = f"## [{table}]" if table else "## At the top"
    assert f"| `{key}` |" in section(CONFIGURATION, heading)
    assert re.search(rf"^(# )?{key} = ", (REPOSITORY / "cluster.toml").read_text(), re.MULTILINE)


def test_no_key_is_documented_that_does_not_exist() -> None:
    documented = set(re.findall(r"^\| `([a-z0-9_]+)` \|", CONFIGURATION, re.MULTILINE))
    assert documented == {key for _, key in keys()}


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=[name for name, _ in commands()])
def test_every_command_and_option_is_documented(name: str, command: click.Command) -> None:
    assert f"\n## cluster {name}\n" in COMMAND_LINE
    text = section(COMMAND_LINE, f"## cluster {name}\n")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name != "config_path":  # which all of them take
            assert f"`{parameter.opts[-1]}" in text or f"`{parameter.opts[0]}" in text, parameter.opts


def test_no_command_is_documented_that_does_not_exist() -> None:
    documented = set(re.findall(r"^## cluster (.+)$", COMMAND_LINE, re.MULTILINE))
    assert documented == {name for name, _ in commands()}


def test_every_exit_code_is_documented() -> None:
    table = section(COMMAND_LINE, "## Exit codes\n")
    classes = [getattr(errors, name) for name in errors.__all__]
    codes = {error.exit_code for error in classes if issubclass(error, errors.ClusterError)}
    for code in codes | {0, INTERRUPTED}:
        assert f"| {code} |" in table, code


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_short_help_is_the_commands_own_first_sentence(name: str) -> None:
    _, command, _ = cli.resolve_command(click.Context(cli), [name])
    assert command is not None
    assert (command.help or "").startswith(COMMANDS[name][1].rstrip("."))


def test_the_readme_names_the_commands_that_matter() -> None:
    for words in ("make demo", "make test", "cluster up", "cluster train --kv-store dist_sync", "cluster down"):
        assert words in README


@pytest.mark.parametrize("document", [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")], ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_messages_of_the_troubleshooting_page_are_ours() -> None:
    """A message that was reworded is to be reworded there, too; "..." stands for what differs."""
    sources = "".join(
        path.read_text()
        for package in ("bootstrap", "cluster", "foundation", "provision", "sandbox", "train")
        for path in (REPOSITORY / package).rglob("*.py")
    )
    page = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    symptoms = re.findall(r"^\*\*(.+?)\*\*", page, re.MULTILINE)
    quoted = [words for symptom in symptoms for words in re.findall(r"`(.+?)`", symptom)]
    messages = [part for words in quoted for part in words.split("...")]
    assert len(messages) > 20
    for message in messages:
        assert message.strip() in sources, message
