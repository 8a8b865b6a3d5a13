"""Every command, option and key is documented, and everything that the documents name exists."""

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import click
import pytest
from click.testing import CliRunner

from cluster.commands import COMMANDS, SECTIONS
from cluster.config import ClusterConfig
from cluster.main import INTERRUPTED, cli
from cluster.views.examples import EXAMPLES
from cluster.views.status import Status, status_document
from foundation import errors
from foundation.settings import describe_settings
from node.protocol import Attempt, EndReason, JobState
from provision.model import ClusterState
from provision.status import AllocationState

REPOSITORY = Path(__file__).parents[3]
README = (REPOSITORY / "README.md").read_text()
CONFIGURATION_PAGES = [REPOSITORY / "docs" / "configuration.md", *sorted(REPOSITORY.glob("docs/configuration/*.md"))]
CONFIGURATION = "\n".join(page.read_text() for page in CONFIGURATION_PAGES)
COMMANDS_PAGE = REPOSITORY / "docs" / "commands.md"
GROUP_PAGES = sorted(COMMANDS_PAGE.with_suffix("").glob("*.md"))
COMMAND_LINE = "\n".join(page.read_text() for page in (COMMANDS_PAGE, *GROUP_PAGES))
NOTHING = Status(state=ClusterState(name="demo"), wanted=2, now=datetime(2026, 11, 21, tzinfo=UTC))


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
    """Returns the keys of each table, by its name in TOML; "" for those at the top."""
    for name, setting in describe_settings(ClusterConfig).items():
        if setting.table is None:
            yield "", name
        else:
            yield from ((setting.written, key) for key in describe_settings(setting.table))


def section(text: str, heading: str) -> str:
    return re.split(r"\n##? ", text.partition(heading)[2], maxsplit=1)[0]


@pytest.mark.parametrize(("table", "key"), list(keys()))
def test_every_key_of_cluster_toml_is_documented(table: str, key: str) -> None:
    heading = f"\n## {table}\n" if table else "\n## At the top\n"
    assert CONFIGURATION.count(heading) == 1
    assert f"\n| `{key}` |" in section(CONFIGURATION, heading)
    assert re.search(rf"^(# )?{key} = ", (REPOSITORY / "cluster" / "default.toml").read_text(), re.MULTILINE)


def test_no_key_is_documented_that_does_not_exist() -> None:
    documented = set(re.findall(r"^\| `([a-z0-9_]+)` \|", CONFIGURATION, re.MULTILINE))
    assert documented == {key for _, key in keys()}


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=[name for name, _ in commands()])
def test_every_command_and_option_is_documented(name: str, command: click.Command) -> None:
    assert f"\n## cluster {name}\n" in COMMAND_LINE
    text = section(COMMAND_LINE, f"## cluster {name}\n") + section(COMMAND_LINE, "## Common behaviour\n")
    if name == "run":  # "It has all options of `cluster train`, and these"
        text += section(COMMAND_LINE, "## cluster train\n")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name != "config_path":  # all commands have it
            assert f"`{parameter.opts[-1]}" in text or f"`{parameter.opts[0]}" in text, parameter.opts


def test_no_command_is_documented_that_does_not_exist() -> None:
    documented = re.findall(r"^## cluster (.+)$", COMMAND_LINE, re.MULTILINE)
    assert sorted(documented) == sorted(name for name, _ in commands())


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_command_takes_another_file(name: str) -> None:
    """After its name; `cluster sandbox -c FILE ...` after the group's, which enters the sandbox."""
    words = name.split()
    at = 1 if words[0] == "sandbox" else len(words)
    with suppress(click.MissingParameter):
        parse([*words[:at], "-c", "other.toml", *words[at:]])
    if at < len(words) and name != "sandbox shell":  # it would be ignored
        with pytest.raises(click.NoSuchOption):
            parse([*words, "-c", "other.toml"])


@pytest.mark.parametrize("page", GROUP_PAGES, ids=lambda page: page.stem)
def test_the_table_of_a_page_and_the_commands_page_link_to_each_of_its_commands(page: Path) -> None:
    table, *sections = page.read_text().split("\n## ")
    headings = [text.partition("\n")[0].lower().replace(" ", "-") for text in sections]
    entry = re.findall(rf"\]\(commands/{page.name}#([\w-]+)\)", COMMANDS_PAGE.read_text())
    assert sorted(re.findall(r"\]\(#([\w-]+)\)", table)) == sorted(entry) == sorted(headings)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_short_help_is_the_commands_own_first_sentence(name: str) -> None:
    _, command, _ = cli.resolve_command(click.Context(cli), [name])
    assert command is not None
    assert (command.help or "").startswith(COMMANDS[name][1].rstrip("."))


DOCUMENTS = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *REPOSITORY.glob("docs/**/*.md"),
        *REPOSITORY.glob("examples/**/*.md"),
        *REPOSITORY.glob("bench/*.md"),
    ]
)


def name_of(document: Path) -> str:
    return str(document.relative_to(REPOSITORY))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere_on_github(document: Path) -> None:
    """`make docs` checks the anchors of the site's pages, which are GitHub's."""
    text = re.sub(r"`[^`\n]+`", "", document.read_text())
    for target in re.findall(r"\]\(\s*([^)]+?)\s*\)|<(https?:[^>]*)>", text):
        link = "".join(target)
        if ":" in link:
            assert re.fullmatch(r"https://[\w.-]+\.[a-z]+(/[^\s<>\"]*)?", link), link
            continue
        path = link.partition("#")[0]
        page = (document.parent / path).resolve() if path else document
        assert page.exists(), link
        assert page.is_relative_to(REPOSITORY), link


def commands_in(text: str) -> Iterator[str]:
    """Returns each `cluster ...` in blocks and in the text, without comments and redirections, and without synopses."""
    blocks = re.findall(r"^ {4,}(cluster .+)$", text, re.MULTILINE)
    spans = re.findall(r"`(cluster [^`]+)`", text.replace("\n", " "))
    for found in (*blocks, *spans):
        line = re.split(r"  |\s#|\s>\s", found)[0].removesuffix(" ...").strip()
        if re.match(r"cluster [-a-z]", line) and not re.search(r"[\[|\]]", line):
            yield line


@pytest.mark.parametrize(
    "document", [page for page in DOCUMENTS if page.name != "CHANGELOG.md" and page.parent.name != "bench"], ids=name_of
)
def test_commands_in_documents_can_be_parsed(document: Path) -> None:
    """Commands are parsed with all options. A command that is only named, and placeholders, lack arguments."""
    for line in commands_in(document.read_text()):
        try:
            parse(shlex.split(line)[1:])
        except (click.MissingParameter, click.exceptions.Exit):
            pass  # the latter: --help
        except click.BadParameter:
            assert re.search(r"\b[A-Z]+\b", line), line
        except click.ClickException as error:
            pytest.fail(f"{line}: {error.format_message()}")


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_help_can_be_parsed(name: str) -> None:
    lines = EXAMPLES[name].strip().splitlines()
    assert 2 <= len(lines) <= 6
    for line in lines:
        assert len(line) <= 76  # after four columns of indentation
        words = shlex.split(line.partition("   ")[0].removeprefix('eval "$(').removesuffix(')"'))
        end = min((words.index(word) for word in ("|", ">") if word in words), default=len(words))
        assert words[0] in {"cluster", "rsync"}
        if words[0] == "cluster":
            parse(words[1:end])


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_line_of_help_is_longer_than_the_screen(name: str) -> None:
    shown = CliRunner().invoke(cli, [*name.split(), "--help"], terminal_width=80).output
    assert shown.startswith("Usage: ")
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_help_lists_the_commands_under_headings() -> None:
    shown = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    assert re.findall(r"^(\S.*):$", shown, re.MULTILINE) == ["Options", *SECTIONS]
    assert re.findall(r"^  ([a-z][a-z-]*)  ", shown, re.MULTILINE) == list(COMMANDS)


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == {"", "config", "data", "image", "sandbox", *(name for name, _ in commands())}
    assert all("Examples:" in (command.epilog or "") for _, command in commands())


def parse(words: list[str]) -> None:
    """Raises click.ClickException for what the command line would refuse."""
    context = cli.make_context("cluster", words)
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize(
    ("heading", "known"),
    [
        ("## cluster status", {*get_args(AllocationState), *status_document(NOTHING)} - {"name", "state", "why"}),
        ("## cluster jobs", {*get_args(JobState), *get_args(EndReason), "damaged", "head_lost"}),
        ("## cluster jobs", set(Attempt.__struct_fields__)),
    ],
)
def test_every_state_and_key_of_json_is_documented(heading: str, known: set[str]) -> None:
    assert known - set(re.findall(r"`([a-z_-]+)`", section(COMMAND_LINE, heading))) == set()


def test_every_exit_code_is_documented() -> None:
    kinds = [found for found in vars(errors).values() if isinstance(found, type)]
    codes = {kind.exit_code for kind in kinds if issubclass(kind, errors.ClusterError)}
    documented = re.findall(r"^\| `(\d+)` \|", section(COMMAND_LINE, "\n## Exit codes\n"), re.MULTILINE)
    assert {0, INTERRUPTED, *codes} <= {int(code) for code in documented}


def test_the_messages_of_the_troubleshooting_page_are_ours() -> None:
    """Messages on the page must match the code; "..." is any text."""
    sources = "".join(
        path.read_text()
        for package in ("bootstrap", "cluster", "foundation", "node", "provision", "sandbox", "train")
        for path in (REPOSITORY / package).rglob("*")
        if path.suffix in (".py", ".ini")
    )
    page = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    symptoms = re.findall(r"^\*\*(.+?)\*\*", page, re.MULTILINE)
    quoted = [words for symptom in symptoms for words in re.findall(r"`(.+?)`", symptom)]
    messages = [part for words in quoted for part in words.split("...")]
    assert len(messages) > 20
    for message in messages:
        assert message.strip() in sources, message
