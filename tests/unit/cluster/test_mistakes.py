"""Mistakes of the first hour: each message names the mistake, the place, and what to do."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.main import cli
from foundation.errors import ClusterError


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTER_CONFIG", raising=False)
    monkeypatch.setattr("sandbox.control.start", None)  # each of these mistakes is told before a sandbox is started


TOML = 'name = "demo"\n'


@pytest.mark.parametrize(
    ("toml", "words", "message", "hint"),
    [
        (None, ("up",), "cluster.toml: there is no such file", "cluster init"),
        ("name = demo", ("up",), "cluster.toml, line 1: name = demo: text needs quotes", 'name = "demo"'),
        (
            TOML + "cloud = aws  # mine",
            ("up",),
            "cluster.toml, line 2: cloud = aws  # mine: text needs",
            'cloud = "aws"',
        ),
        (TOML * 2, ("up",), 'cluster.toml, line 2: name = "demo": this key is there twice', "remove one"),
        (TOML + "[train\n", ("up",), "cluster.toml, line 2: [train: not valid TOML: ", None),
        ("\ufeff" + TOML, ("iam-policy",), None, None),
        (f'name = "{"a" * 40}"', ("up",), "it has 40 characters, and 32 are allowed", None),
        ('name = "My Cluster"', ("up",), 'name = "My Cluster": not allowed; allowed: ', None),
        ('name = "-demo-which-is-long-and-starts-with-a-hyphen"', ("up",), "not allowed; allowed: ", None),
        (TOML + "[provison]", ("up",), 'provison: unknown key; did you mean "provision"?', None),
        (TOML + "[provision]\nnode = 2", ("up",), 'provision.node: unknown key; did you mean "nodes"?', None),
        (TOML + 'cloud = "gcp"', ("up",), 'cloud = "gcp": must be ', None),
        (TOML + '[provision]\nnodes = "2"', ("up",), 'provision.nodes = "2": must be ', None),
        (TOML + "[provision]\nnodes = 0", ("up",), "[provision] nodes = 0: `up` needs at least 1 node", None),
        (TOML + '[train]\nargs = "--epochs 1"', ("up",), 'train.args = "--epochs 1": must be a list ', None),
        (TOML + '[train]\nkv_store = "dist"', ("up",), 'train.kv_store = "dist": must be ', None),
        (TOML, ("train", "--name", "a" * 100), "it has 100 characters, and 64 are allowed", None),
        (TOML, ("train", "--name", "my job"), 'train.name = "my job": not allowed; ', None),
        (TOML, ("train", "own.py"), "own.py: there is no such script in ", "one of: train_cifar10.py"),
        (
            TOML,
            ("train", "python", "own.py"),
            "python: there is no such script",
            "a command follows --: cluster train -- ",
        ),
        (TOML, ("train", "--env", "A:1"), '--env "A:...": must be NAME=VALUE', "--env A=..."),
        (
            TOML,
            ("train", "--env", "NO_SUCH_VARIABLE"),
            "this variable is not set here",
            "export NO_SUCH_VARIABLE first",
        ),
        (TOML, ("train", "--gpus", "all"), '--gpus "all": must be numbers with commas', None),
        (TOML, ("train", "--max-duration", "soon"), 'train.max_duration = "soon": not a length of time such as ', None),
        (TOML, ("train", "-H", "no-hosts"), "--hostfile no-hosts: cannot be read: No such file", None),
        (TOML, ("train", "--job", "no.toml"), "no.toml: there is no such file", None),
        (TOML, ("train", "--epochs", "1"), "cluster train has no option --epochs", "arguments of the script follow "),
        (TOML, ("cp", "a", "b"), "neither SOURCE nor TARGET is on a node", "cluster cp node-0:PATH ."),
        (TOML, ("exec",), "there is no command to run", "cluster exec -- COMMAND"),
    ],
)
@pytest.mark.usefixtures("empty_folder")
def test_a_mistake_is_named(toml: str | None, words: tuple[str, ...], message: str | None, hint: str | None) -> None:
    if toml is not None:
        Path("cluster.toml").write_text(toml, encoding="utf-8")
    done = CliRunner().invoke(cli, words)
    if message is None:
        assert done.exit_code == 0, done.output
        return
    assert isinstance(done.exception, ClusterError), done.output
    assert done.exception.exit_code == 2
    assert message in done.exception.message
    assert (done.exception.hint or "").startswith(hint or "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trian",), "No such command 'trian'"),
        (("resize", "abc"), "'abc' is not a number of nodes, 0 to 1000"),
        (("resize", "--", "-1"), "'-1' is not a number of nodes, 0 to 1000"),
        (("train", "--kv-store", "sync"), "'sync' is not one of"),
        (("init", "--cloud", "gcp"), "'gcp' is not one of 'sandbox', 'aws'"),
    ],
)
def test_a_mistake_of_the_command_line_is_named(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split()), done.output
