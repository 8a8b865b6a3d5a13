"""The command line overrides a job file, which overrides cluster.toml."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cluster.commands.job.train import train
from cluster.config import ClusterConfig, load_config, parse_config
from cluster.submission.request import TrainRequest, as_command, find_hidden, read
from foundation.durations import parse_duration
from foundation.errors import ClusterError, ConfigError, UsageError
from foundation.settings import check, describe_settings
from train.job.config import JobFile, QueueConfig, TrainConfig

NAMED = 'name = "demo"\n'
Given = Callable[..., tuple[ClusterConfig, tuple[str, ...]]]


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    """A function that reads a command line together with a cluster.toml and a job.toml of the given texts."""
    monkeypatch.chdir(tmp_path)

    def given(*words: str, toml: str = "", job: str = "") -> tuple[ClusterConfig, tuple[str, ...]]:
        Path("cluster.toml").write_text(f"{NAMED}[train]\n{toml}")
        Path("job.toml").write_text(job)
        requests: list[TrainRequest] = []

        def command(**options: Any) -> None:
            requests.append(read(options, as_command(options["words"])))

        done = CliRunner().invoke(click.Command("train", params=train.params, callback=command), words)
        if isinstance(done.exception, ClusterError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return load_config(Path("cluster.toml"), requests[0].overrides), requests[0].command

    return given


@pytest.mark.parametrize(
    ("words", "hidden"),
    [(("A", "B=1"), ("A",)), (("A", "A=1"), ()), (("A=1", "A"), ("A",))],  # the last one counts
)
def test_a_value_from_the_environment_is_hidden(words: tuple[str, ...], hidden: tuple[str, ...]) -> None:
    assert find_hidden(words) == hidden


def test_every_option_of_the_command_line(given: Given) -> None:
    Path("hosts").write_text("# two of them\nnode-1\n\n 10.0.0.4:22 # the head\nnode-1\n")
    words = "-n 4 -s 2 -H hosts --launcher mpi --kv-store dist_async --gc-type 2bit --gc-threshold 0.25 --p3"
    more = "--gpus 0,1 --env A=1 --env B=x=y --env-server A=2 --env-worker A= --sync-dst-dir ~/job"
    config, command = given(*words.split(), *more.split(), "--max-duration", "90m", "--name", "mine", "--queue")
    assert command == ()
    assert config.train == TrainConfig(
        workers=4,
        servers=2,
        hosts=("node-1", "10.0.0.4:22", "node-1"),
        launcher="mpi",
        kv_store="dist_async",
        gc_type="2bit",
        gc_threshold=0.25,
        p3=True,
        gpus=(0, 1),
        env={"A": "1", "B": "x=y"},
        env_server={"A": "2"},
        env_worker={"A": ""},
        sync_dst_dir="~/job",
        max_duration="90m",
        name="mine",
        queue=True,
    )


def test_launch_pys_own_option_names(given: Given) -> None:
    config, _ = given("--num-workers", "4", "--num-servers", "2", "--sync-dir", "/data/job")
    assert (config.train.workers, config.train.servers, config.train.sync_dst_dir) == (4, 2, "/data/job")


@pytest.mark.parametrize("value", ["hush", "", "a=b:c\nd", "\udcff"], ids=["plain", "empty", "odd", "invalid UTF-8"])
def test_a_name_alone_takes_its_value_from_the_environment(
    given: Given, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("OF_HERE", value)
    words = ("--env", "OF_HERE", "--env-server", "OF_HERE", "--env-worker", "OF_HERE", "--env", "A=1")
    job = 'env = {OF_HERE = "job", B = "job"}\nenv_worker = {OF_HERE = "job"}\n'
    train = given("--job", "job.toml", *words, toml='env = {OF_HERE = "toml"}\n', job=job)[0].train
    assert train.env == {"OF_HERE": value, "A": "1", "B": "job"}
    assert train.env_server == train.env_worker == {"OF_HERE": value}
    train = given("--env", "OF_HERE=line", "--env-server", "OF_HERE=")[0].train  # an explicit value counts
    assert (train.env, train.env_server, train.env_worker) == ({"OF_HERE": "line"}, {"OF_HERE": ""}, {})


def test_a_job_file_overrides_cluster_toml_and_the_command_line_both(given: Given) -> None:
    toml = 'workers = 2\nservers = 2\nkv_store = "dist_sync"\nenv = {A = "toml", B = "toml", C = "toml"}\n'
    job = 'workers = 3\nservers = 3\nenv = {B = "job", C = "job"}\nenv_worker = {D = "job", E = "job"}\n'
    words = ("--job", "job.toml", "-n", "4", "--env", "C=line", "--env-worker", "E=line")
    train = given(*words, toml=toml, job=job)[0].train
    assert (train.workers, train.servers, train.kv_store) == (4, 3, "dist_sync")
    assert train.env == {"A": "toml", "B": "job", "C": "line"}
    assert train.env_worker == {"D": "job", "E": "line"}


def test_options_override_the_keys_that_contradict_them(given: Given) -> None:
    train = given("-n", "4", "--nodes", "2", toml='processes = 2\nhosts = ["node-1"]\n')[0].train
    assert (train.workers, train.processes, train.nodes, train.hosts) == (4, "auto", 2, ())
    Path("hosts").write_text("node-1\n")
    with pytest.raises(ConfigError, match="hosts and nodes both select"):
        given("-H", "hosts", "--nodes", "2")


def test_every_key_of_train_is_a_key_of_a_job_file() -> None:
    assert set(describe_settings(JobFile)) == {*describe_settings(TrainConfig), "command"}


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("worker = 3", 'job.toml: worker: unknown key; did you mean "workers"?'),
        ("comand = ['x']", 'comand: unknown key; did you mean "command"?'),
        ("max_duration = '90x'", 'max_duration = "90x"'),
        ("command = ['x']\nscript = 'y.py'", "job.toml: command replaces script and args"),
        ("workers = ", "job.toml: not valid TOML"),
    ],
)
def test_mistakes_in_a_job_file(given: Given, job: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        given("--job", "job.toml", job=job)
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--env", "1A=hush"], '--env "1A=...": must be NAME=VALUE or NAME', None),
        (["--env", "MY-TOKEN:hush"], "--env: must be NAME=VALUE or NAME", None),
        (["--env", "NOT_SET"], '--env "NOT_SET": this variable is not set here', "export NOT_SET first; or --env NOT_"),
        (["--env-worker", "A:hush"], '--env-worker "A:..."', "--env-worker A=... (launch.py's NAME:VALUE"),
        (["--gpus", "all"], '--gpus "all": must be numbers', "cluster train --gpus 0,1"),
        (["-H", "nowhere"], "--hostfile nowhere: cannot be read: No such file", "correct the path after -H"),
        (["-H", "job.toml"], "--hostfile job.toml: names no host", "one host a line"),
    ],
)
def test_invalid_options(
    given: Given, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str, hint: str | None
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(UsageError) as raised:
        given(*words, job="# nothing\n")
    assert message in raised.value.message
    assert "hush" not in f"{raised.value.message}{raised.value.hint}"
    assert (raised.value.hint is None) if hint is None else hint in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus = 'all'", 'train.gpus = "all": must be "auto", "none" or a list (the GPUs of each worker'),
        ("hosts = ['-x']", 'train.hosts[0] = "-x"'),
        ("name = 'my job'", 'train.name = "my job"'),
        ("sync_dst_dir = 'here'", 'train.sync_dst_dir = "here"'),
        ("max_duration = 0", "train.max_duration = 0: must be from 1 second to 30 days"),
        ("env_server = {'a b' = '3'}", "train.env_server"),
    ],
)
def test_invalid_values(given: Given, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        given(toml=text)
    assert message in raised.value.message


@pytest.mark.parametrize("value", ["", "0s", "1", "1.5h", "h", "-1h", "1h30m", "2 h", "31d", 0, -1, 2592001])
def test_invalid_durations(value: str | int) -> None:
    with pytest.raises(ValueError, match="must be "):
        parse_duration(value)


def test_an_invalid_value_names_its_source(given: Given) -> None:
    with pytest.raises(ConfigError) as raised:
        given("-n", "0", "--name", "my job", "--env", "A=\0", toml='kv_store = "dist"\nenv = {B = 1}\n')
    assert [line.split(" = ")[0].partition(": must")[0] for line in raised.value.message.splitlines()] == [
        "command line: train.name",
        "cluster.toml: train.kv_store",
        "command line: train.workers",
        "cluster.toml: train.env.B",
        "command line: train.env.A",
    ]


@pytest.mark.parametrize(
    ("words", "job", "command"),
    [
        (("--", "python my.py --lr 0.1"), "", ("bash", "-c", "python my.py --lr 0.1")),
        (("python 'a b.py' \"$HOME\" && echo 'done'",), "", ("bash", "-c", "python 'a b.py' \"$HOME\" && echo 'done'")),
        (("--", "python", "a b.py"), "", ("python", "a b.py")),
        (("--", "a file.sh"), "", ("a file.sh",)),  # it exists
        (("--", " "), "", (" ",)),
        ((), 'command = ["a program"]', ("a program",)),
        (("--", "x", "--y"), 'command = ["z"]', ("x", "--y")),
    ],
)
def test_only_a_line_on_the_command_line_needs_a_shell(
    given: Given, words: tuple[str, ...], job: str, command: tuple[str, ...]
) -> None:
    Path("a file.sh").touch()
    assert given("--job", "job.toml", *words, job=job)[1] == command


VOLUMES = [{"mount": "/shared", "source": "nas:/export"}, {"mount": "/data", "source": "nas:/data", "read_only": True}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"url": "/elsewhere/data"}, 'data.url = "/elsewhere/data": not on a volume'),
        ({"results": "/data/results"}, 'data.results = "/data/results": the volume /data is read_only'),
        ({"url": "/shared/../etc"}, "not a path"),
        ({"url": "shared/data"}, "not an S3 URL"),
        ({"results": "s3://bucket/r//"}, 'a part of the key is empty, "." or ".."'),
    ],
)
def test_paths_on_volumes(data: dict[str, str], message: str) -> None:
    data_on_volumes = {"url": "/data/x/", "results": "/shared/results"}
    good = {"name": "demo", "cloud": "aws", "volumes": VOLUMES, "data": data_on_volumes}
    config = parse_config(good, source="cluster.toml")
    assert (config.data.url, config.data.s3_url, config.data.s3_results) == ("/data/x/", None, None)
    with pytest.raises(ConfigError) as raised:
        parse_config({**good, "data": data}, source="cluster.toml")
    assert message in raised.value.message


# --- [queue]: a request to a batch scheduler


@pytest.mark.parametrize(
    ("walltime", "max_duration_s", "walltime_s"),
    [("auto", None, None), ("auto", 45, 60), ("auto", 3601, 3660), (90, 60, 90), ("2h", 7200, 7200)],
)
def test_the_walltime(walltime: str | int, max_duration_s: int | None, walltime_s: int | None) -> None:
    queue = check(QueueConfig, {"walltime": walltime}, source="cluster.toml")
    assert queue.find_walltime_s(max_duration_s) == walltime_s
    assert queue.find_conflict(max_duration_s) is None


def test_a_job_that_may_run_longer_than_its_walltime_is_refused() -> None:
    text = 'name = "x"\n[train]\nmax_duration = "2h"\n[queue]\nwalltime = "90m"\n'
    with pytest.raises(ConfigError) as raised:
        parse_config(tomllib.loads(text), source="cluster.toml")
    assert raised.value.message == (
        "cluster.toml: [train] max_duration is 2h, but [queue] walltime is 90m: the scheduler would end the job first"
    )
    parse_config(tomllib.loads(text), source="cluster.toml", overrides={"train.max_duration": "90m"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "x\n#SBATCH --uid=0"),
        ("account", "$(id)"),
        ("walltime", "none"),
        ("options", ["--a\nrm -rf /"]),
        ("partition", "gpu"),
    ],
)
def test_wrong_values_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        check(QueueConfig, {key: value}, source="cluster.toml")
