"""A beginner's mistakes: each message names the mistake, its place, and what to do."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.main import cli
from foundation.errors import ClusterError, ConfigError, UsageError


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTER_CONFIG", raising=False)
    monkeypatch.setattr("ec2_sandbox.control.start", None)  # all of these are reported before a sandbox starts


TOML = 'name = "demo"\n'


@pytest.mark.parametrize(
    ("toml", "words", "message", "hint"),
    [
        (None, ("up",), "cluster.toml: there is no such file", "cluster init"),
        ("name = demo", ("up",), "cluster.toml, line 1: not valid TOML: Invalid value (text needs quotes", None),
        (TOML * 2, ("up",), "line 2: not valid TOML: Cannot overwrite a value (a key appears twice)", None),
        (TOML + "[provision]\nnodes = 0", ("up",), "[provision] nodes = 0: `up` needs at least 1", "set nodes, or: "),
        (None, ("-c", "my.toml", "up"), "my.toml: there is no such file", "cluster -c my.toml init"),
        (TOML + '[train]\nscript = "src"', ("up",), '"src": {here}/src is a folder, not a script', "name a file in it"),
        (TOML, ("train", ""), "the first word is empty", "cluster train SCRIPT"),
        (TOML, ("train", "src"), "src: this is a folder, and not a script", "cluster train src/main.py"),
        (TOML, ("init",), "cluster.toml exists already; it is left as it is", "cluster -c OTHER.toml init"),
        (TOML + '[data]\nurl = "s3:/b/x"', ("up",), 'url = "s3:/b/x": not an S3 URL: write it as s3://', None),
        (TOML, ("report", "--json", "-o", "a.html"), "--json prints the numbers", "cluster report --json > FILE"),
        (TOML, ("data", "put", "no/", "s3://bucket/"), "no/: no such file or folder", "ls "),
        (TOML, ("replay", "no.capsule"), "no.capsule: there is no such file", "cluster capsule, "),
        (TOML, ("train",), "the sandbox of this folder is not running, so there is no cluster", "cluster up"),
        (TOML, ("sandbox", "fault", "capcity"), 'did you mean "capacity"?', "cluster sandbox fault --help"),
    ],
)
@pytest.mark.usefixtures("empty_folder")
def test_a_mistake_is_named(toml: str | None, words: tuple[str, ...], message: str, hint: str | None) -> None:
    if toml is not None:
        Path("cluster.toml").write_text(toml, encoding="utf-8")
    Path("src").mkdir()
    Path("src/main.py").touch()
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, ClusterError), done.output
    assert done.exception.exit_code == (2 if isinstance(done.exception, ConfigError | UsageError) else 1)
    assert message.format(here=Path.cwd()) in done.exception.message
    assert (done.exception.hint or "").startswith(hint or "correct "), done.exception.hint


@pytest.mark.usefixtures("empty_folder")
def test_a_script_is_compiled_before_anything_is_sent() -> None:
    """Before the sandbox, or AWS, is even asked for the nodes."""
    Path("cluster.toml").write_text(TOML)
    Path("own.py").write_text("print 'x'\n")
    done = CliRunner().invoke(cli, ("train", "own.py"))
    assert isinstance(done.exception, UsageError)
    assert done.exception.message.startswith("own.py, line 1: Missing parentheses")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("lease", "--budget", "abc"), "'abc' is not an amount in US dollars"),
        (("lease", "--budget", "0"), "'0' is not an amount in US dollars"),
        (("lease", "4h"), "write +4h to put the end off by four hours"),
    ],
)
def test_a_wrong_value_of_an_option_is_named(words: tuple[str, ...], message: str) -> None:
    assert message in CliRunner().invoke(cli, words).output
