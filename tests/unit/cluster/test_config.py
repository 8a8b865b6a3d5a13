"""cluster.toml: the values that are accepted, and the errors for all others."""

import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace

from bootstrap.notify import NotifyConfig
from cluster.app import App
from cluster.commands.up import override_nodes
from cluster.config import ClusterConfig, find_mistakes, load_config, parse_config
from foundation.errors import ConfigError
from provision.volumes.config import VolumeConfig

REPOSITORY = Path(__file__).parents[3]
NAMED = 'name = "demo"\n'


def parse(text: str) -> ClusterConfig:
    return parse_config(tomllib.loads(text), source="cluster.toml")


def test_init_writes_the_shipped_file() -> None:
    assert (REPOSITORY / "cluster" / "default.toml").read_text() == (REPOSITORY / "cluster.toml").read_text()


def test_the_keys_that_are_commented_out_show_their_defaults() -> None:
    lines = (REPOSITORY / "cluster" / "default.toml").read_text().splitlines()
    uncommented = [
        line[2:] if line.startswith("# ") and (" = " in line.split("#")[1] or line.startswith("# [[")) else line
        for line in lines
    ]
    written = parse("\n".join(uncommented))
    shipped = load_config(REPOSITORY / "cluster.toml")
    # The commented values of env, results, notify and volumes are examples, because their defaults are empty.
    assert written.notify == NotifyConfig(webhook="$MY_WEBHOOK", command="sh ~/tell.sh")
    assert written.train.env == {"OMP_NUM_THREADS": "4"}
    assert written.data.results == "s3://cluster-demo/results/"
    assert written.volumes == (VolumeConfig(mount="/shared", source="head"),)
    train = replace(written.train, env={})
    data = replace(written.data, results=None)
    assert replace(written, train=train, data=data, volumes=(), notify=NotifyConfig()) == shipped


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (NAMED + "[sandbox]\nquotas = { L-1216C47A = 9000000 }", ["quotas.L-1216C47A", "0 to 1000000"]),
        (NAMED + "[provision]\nmarket = []", ["cluster.toml: [provision] market is empty or has duplicates: []"]),
        (NAMED + "[bootstrap]\nmxnet = 'numpy==1.23.5'", ['mxnet = "numpy==1.23.5"']),
        (NAMED + "[bootstrap]\npackages = ['--index-url=https://x']", ["the option --index-url is not"]),
        (NAMED + "[bootstrap]\npackages = ['a @ https://x/a.zip']", ["not a URL without a password"]),
        (NAMED + "[sandbox]\nfaults = ['kill instance=i-1']", ["sandbox fault kill instance=i-1"]),
        (NAMED + "[sandbox]\nquotas = { L-1 = 3 }", ["there is no quota L-1", "L-1216C47A"]),
        (NAMED + '[train]\nargs = ["a\\u0000b"]', [r'train.args[0] = "a\u0000b"']),
        (
            NAMED + "[volumes]\nmount = '/shared'",
            ['volumes = { mount = "/shared" }: must be tables, each written as [[volumes]]'],
        ),
        (
            NAMED + "[container]\nregistry = 'docker.io'",
            ['container.registry = "docker.io": must be a table, written as [container.registry]'],
        ),
        (
            NAMED + "cloud = 'hosts'\n[[volumes]]\nmount = '/a'\nsource = 'head'",
            ['volumes[0].source = "head": needs instances of EC2'],
        ),
    ],
)
def test_a_mistake_is_named_with_its_key_and_what_is_allowed(text: str, messages: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text)
    assert raised.value.exit_code == 2
    for words in messages:
        assert words in raised.value.message


@pytest.mark.parametrize("value", ["31337", '"31337\\u0000"', "a31337"])
def test_the_value_of_a_variable_is_not_shown(tmp_path: Path, value: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(f"{NAMED}[train]\nenv = {{TOKEN = {value}}}\n")
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    assert "31337" not in f"{raised.value.message} {raised.value.hint} {find_mistakes(path)}"


@pytest.mark.parametrize(("nodes", "min_nodes"), [(0, "all"), (8, 2)])
def test_min_nodes_is_checked_against_the_nodes_of_the_file(tmp_path: Path, nodes: int, min_nodes: str | int) -> None:
    (tmp_path / "cluster.toml").write_text('name = "demo"\n[provision]\nnodes = 4\nmin_nodes = 2\n')
    app = App(config_path=tmp_path / "cluster.toml")
    assert override_nodes(app, nodes) == 4
    assert (app.config.provision.nodes, app.config.provision.min_nodes) == (nodes, min_nodes)
