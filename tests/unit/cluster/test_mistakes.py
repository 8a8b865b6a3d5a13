"""A beginner's mistakes: each message names the mistake, its place, and what to do."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.main import cli
from foundation.errors import ClusterError, ConfigError, NotFoundError, UsageError
from s3_server import S3Server, server, shared_server

__all__ = ["server", "shared_server"]


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTER_CONFIG", raising=False)
    monkeypatch.setattr("sandbox.control.start", None)  # all of these are reported before a sandbox starts


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
        (TOML + "[provision]\nefa = True", ("up",), "cluster.toml, line 3: efa = True: the words are", "efa = true"),
        (TOML + "[provision]\nefa = no", ("up",), "the words are true and false", "efa = false"),
        (TOML, ("kill",), "there is no command kill", "cluster stop stops a job, cluster down deletes"),
        (TOML, ("ps", "-a"), "there is no command ps", "cluster jobs"),
        (TOML, ("help", "train"), "there is no command help", "cluster --help"),
        (TOML * 2, ("up",), 'cluster.toml, line 2: name = "demo": this key appears twice', "remove one"),
        (TOML + "[train\n", ("up",), "cluster.toml, line 2: [train: not valid TOML: ", None),
        (f'name = "{"a" * 40}"', ("up",), "it has 40 characters, and 32 are allowed", None),
        ('name = "My Cluster"', ("up",), 'name = "My Cluster": not allowed; allowed: ', None),
        ('name = "-demo-which-is-long-and-starts-with-a-hyphen"', ("up",), "not allowed; allowed: ", None),
        (TOML + "[provison]", ("up",), 'provison: unknown key; did you mean "provision"?', None),
        (TOML + "[provision]\nnode = 2", ("up",), 'provision.node: unknown key; did you mean "nodes"?', None),
        (TOML + 'cloud = "gcp"', ("up",), 'cloud = "gcp": must be ', None),
        (TOML + '[provision]\nnodes = "2"', ("up",), 'provision.nodes = "2": must be ', None),
        (
            TOML + "[provision]\nnodes = 0",
            ("up",),
            "[provision] nodes = 0: `up` needs at least 1 node",
            "set nodes, or: ",
        ),
        (TOML + '[train]\nargs = "--epochs 1"', ("up",), 'train.args = "--epochs 1": must be a list ', None),
        (TOML + '[train]\nkv_store = "dist"', ("up",), 'train.kv_store = "dist": must be ', None),
        (TOML, ("train", "--name", "a" * 100), "it has 100 characters, and 64 are allowed", None),
        (TOML, ("train", "--name", "my job"), 'train.name = "my job": not allowed; ', None),
        (TOML, ("train", "own.py"), "own.py: there is no such script in ", "one of: train_cifar10.py"),
        (
            TOML,
            ("train", "python", "own.py"),
            "own.py: there is no such script in ",
            "one of: train_cifar10.py",
        ),
        (TOML, ("train", "--env", "A:1"), '--env "A:...": must be NAME=VALUE', "--env A=..."),
        (
            TOML,
            ("train", "--env", "NO_SUCH_VARIABLE"),
            "this variable is not set here",
            "export NO_SUCH_VARIABLE first",
        ),
        (TOML, ("train", "--gpus", "all"), '--gpus "all": must be numbers with commas', "cluster train --gpus 0,1"),
        (TOML, ("train", "--max-duration", "soon"), 'train.max_duration = "soon": must be a time such as ', None),
        (TOML, ("train", "-H", "no-hosts"), "--hostfile no-hosts: cannot be read: No such file", None),
        (TOML, ("train", "--job", "no.toml"), "no.toml: there is no such file", None),
        (TOML, ("train", "--epochs", "1"), "cluster train has no option --epochs", "arguments of the script follow "),
        (None, ("down",), "cluster.toml: there is no such file", "cluster init"),
        (None, ("-c", "my.toml", "up"), "my.toml: there is no such file", "cluster -c my.toml init"),
        (
            TOML + '[bootstrap]\npackages = "numpy"',
            ("up",),
            'packages = "numpy": must be a list such as ["numpy"]',
            None,
        ),
        (TOML + '[bootstrap]\npackages = ["-e ."]', ("up",), "the option -e is not supported; remove it: ", None),
        (TOML + '[bootstrap]\npackages = ["-r no.txt"]', ("up",), "no.txt: there is no such file", None),
        (TOML + '[bootstrap]\nsync = ["no/"]', ("up",), 'sync = "no": there is no such file or folder in ', None),
        (TOML + '[bootstrap]\npython = "2.7"', ("up",), 'bootstrap.python = "2.7": not allowed; ', None),
        (TOML + '[bootstrap]\nmxnet = "mxnet"', ("up",), "a wheel with its version, such as ", None),
        (TOML + "[trian]", ("up",), 'trian: unknown key; did you mean "train"?', None),
        (TOML + "nodes = 3", ("up",), "nodes: unknown key; did you mean [provision] nodes?", None),
        (
            TOML + '[train]\nscript = "src"',
            ("up",),
            '"src": {here}/src is a folder, not a script',
            "name a file in it",
        ),
        (TOML, ("train", "src"), "src: this is a folder, and not a script", "cluster train src/main.py"),
        (TOML, ("train", "src/main"), "src/main: there is no such script in ", "cluster train src/main.py"),
        (TOML, ("train", "--", "src/windows.sh"), "src/windows.sh, line 1: the line ends as on Windows", "sed -i "),
        (
            TOML + '[provision]\ninstance_type = "g5.xlrage"',
            ("up",),
            'instance_type = "g5.xlrage": EC2 has no size "xlrage"; did you mean "g5.xlarge"?',
            None,
        ),
        (
            TOML + '[provision]\ninstance_type = "g5"',
            ("up",),
            'instance_type = "g5": must be an EC2 instance type',
            None,
        ),
        (
            TOML + '[provision]\nregion = "us-east-1a"',
            ("up",),
            'must be an AWS region; did you mean "us-east-1"?',
            None,
        ),
        (TOML + '[provision]\nregion = "us-east1"', ("up",), 'must be an AWS region; did you mean "us-east-1"?', None),
        (
            TOML + '[provision]\nregion = "virginia"',
            ("up",),
            'region = "virginia": must be an AWS region such as',
            None,
        ),
        (None, ("init", "--instance-type", "p4d.24xlrage"), 'did you mean "p4d.24xlarge"?', None),
        (None, ("init", "--name", "My Cluster"), 'name = "My Cluster": not allowed', "cluster init --name my-cluster"),
        (TOML, ("init",), "cluster.toml exists already; it is left as it is", "cluster -c OTHER.toml init"),
        (TOML + '[data]\nurl = "s3:/b/x"', ("up",), 'url = "s3:/b/x": not an S3 URL; did you mean "s3://b/x"?', None),
        (TOML + '[data]\nurl = "data/"', ("up",), 'url = "data/": not an S3 URL: write it as s3://BUCKET/', None),
        (TOML + '[data]\nurl = "s3://My_B/"', ("up",), '"My_B" is not a bucket name: 3 to 63 lower-case', None),
        (TOML, ("data", "put", "no/", "s3://bucket/"), "no/: no such file or folder", "ls "),
        (
            TOML,
            ("data", "put", "src/", "dst/"),
            "put copies from this machine to S3, not src/ to dst/",
            "cluster data put",
        ),
        (TOML, ("train",), "the sandbox of this folder is not running, so there is no cluster", "cluster up"),
        (TOML, ("sandbox", "fault", "capacity"), "the sandbox of this folder is not running", "cluster sandbox start"),
        (TOML, ("sandbox", "fault", "capcity"), 'did you mean "capacity"?', "cluster sandbox fault --help"),
        (TOML, ("sandbox", "fault", "capacity", "place=x"), "capacity: ", "cluster sandbox fault --help"),
        (TOML, ("cp", "a", "b"), "neither SOURCE nor TARGET is on a node", "cluster cp node-0:PATH ."),
        (TOML, ("exec",), "there is no command to run", "cluster exec -- COMMAND"),
    ],
)
@pytest.mark.usefixtures("empty_folder")
def test_a_mistake_is_named(toml: str | None, words: tuple[str, ...], message: str, hint: str | None) -> None:
    if toml is not None:
        Path("cluster.toml").write_text(toml, encoding="utf-8")
    Path("src").mkdir()
    Path("src/main.py").touch()
    Path("src/windows.sh").write_bytes(b"#!/bin/sh\r\necho\r\n")
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, ClusterError), done.output
    assert done.exception.exit_code == (2 if isinstance(done.exception, ConfigError | UsageError) else 1)
    assert message.format(here=Path.cwd()) in done.exception.message
    assert (done.exception.hint or "").startswith(hint or "correct "), done.exception.hint


@pytest.mark.parametrize(
    ("content", "line"), [(TOML.encode() + "# größer\n".encode("latin-1"), 2), (TOML.encode("utf-16"), 1)]
)
@pytest.mark.usefixtures("empty_folder")
def test_a_file_that_is_not_utf_8_names_the_line(content: bytes, line: int) -> None:
    Path("cluster.toml").write_bytes(content)
    done = CliRunner().invoke(cli, ("iam-policy",))
    assert isinstance(done.exception, ConfigError)
    assert done.exception.message == f"cluster.toml, line {line}: not UTF-8 text"
    assert done.exception.hint == "save cluster.toml as UTF-8"


@pytest.mark.parametrize("text", ["\ufeff" + TOML, TOML.replace("\n", "\r\n") + "[train]\r\nargs = []\r\n"])
@pytest.mark.usefixtures("empty_folder")
def test_a_file_from_windows_is_read(text: str) -> None:
    Path("cluster.toml").write_bytes(text.encode())
    assert CliRunner().invoke(cli, ("iam-policy",)).exit_code == 0


@pytest.mark.usefixtures("empty_folder")
def test_a_missing_bucket_is_named(server: S3Server) -> None:
    Path("cluster.toml").write_text(TOML + 'cloud = "aws"')
    done = CliRunner().invoke(cli, ("data", "ls", "s3://no-such-bucket/"))
    assert isinstance(done.exception, NotFoundError)
    assert done.exception.message == "bucket no-such-bucket does not exist"
    assert done.exception.hint is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trian",), "No such command 'trian'"),
        (("resize", "abc"), "'abc' is not a number of nodes, 0 to 1000"),
        (("resize", "--", "-1"), "'-1' is not a number of nodes, 0 to 1000"),
        (("train", "--kv-store", "sync"), "'sync' is not one of"),
        (("up", "--node", "3"), "No such option '--node'. Did you mean '--nodes'?"),
        (("up", "--nodes", "three"), "'three' is not a valid integer"),
        (("resize",), "Missing argument 'N'"),
        (("data", "fetch", "mnits", "x/"), "'mnits' is not one of 'cifar10', 'digits', 'mnist'"),
        (("data", "put", "x", "s3:/b/x"), "'s3:/b/x': not an S3 URL; did you mean \"s3://b/x\"?"),
        (("data", "ls", "https://b.s3.us-west-2.amazonaws.com/x"), 'did you mean "s3://b/x"?'),
        (("init", "--cloud", "gcp"), "'gcp' is not one of 'sandbox', 'aws'"),
    ],
)
def test_a_mistake_of_the_command_line_is_named(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split()), done.output


@pytest.mark.usefixtures("empty_folder")
def test_a_script_is_compiled_before_anything_is_sent() -> None:
    """Before the sandbox, or AWS, is even asked for the nodes."""
    Path("cluster.toml").write_text(TOML)
    Path("own.py").write_text("print 'x'\n")
    done = CliRunner().invoke(cli, ("train", "own.py"))
    assert isinstance(done.exception, UsageError)
    assert done.exception.message.startswith("own.py, line 1: Missing parentheses")
