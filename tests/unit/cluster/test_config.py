"""cluster.toml: the values that are accepted, and the errors for all others."""

import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace

from bootstrap.notify import NotifyConfig
from cluster.app import App
from cluster.commands.up import override_nodes
from cluster.config import ClusterConfig, load_config, parse_config
from foundation.errors import ConfigError
from provision.volumes.config import VolumeConfig

REPOSITORY = Path(__file__).parents[3]
NAMED = 'name = "demo"\n'


def parse(text: str) -> ClusterConfig:
    return parse_config(tomllib.loads(text), source="cluster.toml")


def test_the_shipped_file_is_a_two_node_sandbox_cluster() -> None:
    config = load_config(REPOSITORY / "cluster.toml")
    assert (config.cloud, config.provision.nodes, config.train.kv_store) == ("sandbox", 2, "dist_sync")


def test_init_writes_the_shipped_file() -> None:
    assert (REPOSITORY / "cluster" / "default.toml").read_text() == (REPOSITORY / "cluster.toml").read_text()


def test_the_keys_that_are_commented_out_show_their_defaults() -> None:
    lines = (REPOSITORY / "cluster.toml").read_text().splitlines()
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
    ("written", "normal"),
    [
        ("scipy", "scipy"),
        ("scipy==1.9.3", "scipy==1.9.3"),
        ("opencv-python-headless<4.8", "opencv-python-headless<4.8"),
        ("a >= 1, < 2", "a<2,>=1"),
        ("a~=1.4.2", "a~=1.4.2"),
        ("a==1.*,!=1.3", "a!=1.3,==1.*"),
        ("Some_Name[extra]>=1!2.0rc1", "Some_Name[extra]>=1!2.0rc1"),
    ],
)
def test_packages_have_versions_in_pips_syntax(written: str, normal: str) -> None:
    assert parse(NAMED + f"[bootstrap]\npackages = ['{written}']").bootstrap.packages == (normal,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["name: missing"]),
        ('nam = "x"\n', ['nam: unknown key; did you mean "name"?']),
        ('name = "Bad Name"', ['name = "Bad Name"', "lower-case letters, digits and hyphens"]),
        ('name = "$(reboot)"', ['name = "$(reboot)"', "lower-case letters"]),
        ('name = "../x"', ['name = "../x"']),
        ('name = "a\\nb"', [r'name = "a\nb": not allowed', "lower-case letters"]),
        (f'name = "{"x" * 33}"', ["32 at most"]),
        (NAMED + 'cloud = "gcp"', ['cloud = "gcp"', '"sandbox"', '"aws"']),
        (NAMED + "[provision]\nnodez = 3", ['provision.nodez: unknown key; did you mean "nodes"?']),
        (NAMED + "[provision]\nnodes = 'two'", ['provision.nodes = "two"', "must be a whole number from 0 to 1000"]),
        (NAMED + "[lease]\nbudget_usd = 1e300", ["lease.budget_usd = 1e+300", "above 0, at most 10000000"]),
        (NAMED + "[data]\ncache_gib = 1e300", ["data.cache_gib = 1e+300", "above 0, at most 1000000"]),
        (NAMED + "[sandbox]\nlink_mbit = 1e300", ["link_mbit = 1e+300", "0 to 1000000"]),
        (NAMED + "[sandbox]\nquotas = { L-1216C47A = 9000000 }", ["quotas.L-1216C47A", "0 to 1000000"]),
        (NAMED + "[provision]\nnodes = -1", ["provision.nodes = -1", "0 to 1000"]),
        (NAMED + "[provision]\nnodes = true", ["provision.nodes = true"]),
        (NAMED + "[provision]\nnodes = 1.5", ["provision.nodes = 1.5"]),
        (NAMED + "nodes = 3", ["nodes: unknown key; did you mean [provision] nodes?"]),
        (NAMED + "provision = 3", ["provision = 3: must be a table, written as [provision]"]),
        (NAMED + "[provision]\nssh_from = '10.0.0.0/99'", ['ssh_from = "10.0.0.0/99"', "IPv4 network"]),
        (NAMED + "[provision]\nvolume_size_gib = 1", ["volume_size_gib = 1"]),
        (NAMED + "[provision]\nami = 'image'", ['ami = "image"']),
        (NAMED + "[provision]\nmarket = []", ["cluster.toml: [provision] market is empty or has duplicates: []"]),
        (NAMED + "[bootstrap]\nmxnet = 'x; rm -rf /'", ['mxnet = "x; rm -rf /"']),
        (
            NAMED + "[bootstrap]\nmxnet = 'mxnet'",
            ['mxnet = "mxnet": not allowed', "with its version", "cluster oracle"],
        ),
        (NAMED + "[bootstrap]\nmxnet = 'numpy==1.23.5'", ['mxnet = "numpy==1.23.5"']),
        (NAMED + "[bootstrap]\npackages = ['$(id)']", ['packages[0] = "$(id)"', "not a package with versions"]),
        (NAMED + "[bootstrap]\npackages = ['--index-url=https://x']", ["the option --index-url is not"]),
        (NAMED + "[bootstrap]\npackages = ['a @ https://x/a.whl']", ["URLs and files are not supported"]),
        (NAMED + "[bootstrap]\npackages = ['-e .']", ['packages[0] = "-e .": the option -e is not supported']),
        (NAMED + "[sandbox]\nfaults = ['capacty']", ['faults[0] = "capacty"', 'did you mean "capacity"?']),
        (NAMED + "[sandbox]\nfaults = ['kill instance=i-1']", ["cluster sandbox fault kill instance=i-1"]),
        (NAMED + "[sandbox]\nquotas = { L-1 = 3 }", ["there is no quota L-1", "L-1216C47A"]),
        (NAMED + "[sandbox]\nboot_delay_s = -1", ["boot_delay_s = -1", "0 to 3600"]),
        (NAMED + "[sandbox]\nhosts = 'some'", ['hosts = "some"', '"real"', '"none"']),
        (NAMED + "[bootstrap]\npython = 'python3'", ['python = "python3"', "absolute path"]),
        (NAMED + "[train]\nworkers = 0", ["train.workers = 0", "1 to 1000", "one per node"]),
        (NAMED + '[train]\nargs = ["a\\u0000b"]', [r'train.args[0] = "a\u0000b"']),
        (NAMED + '[train]\nenv = {A = "\\u0000"}', ["train.env"]),
        (NAMED + "[train]\nkv_store = 'dist'", ['train.kv_store = "dist"', "dist_sync"]),
        (NAMED + "[train]\nargs = [1]", ["train.args[0] = 1"]),
        (NAMED + "[train]\nenv = {A = 3}", ["train.env.A: must be text in quotes"]),
        (NAMED + "[train]\nenv = {'a b' = '3'}", ['train.env."a b": must be a name of letters']),
        (NAMED + "[train]\nenv = {\"A\\n\" = '3'}", [r'train.env."A\n": must be a name of letters']),
        (NAMED + "'a b' = 3", ['"a b": unknown key']),
        (NAMED + "[data]\nurl = 'http://x/y'", ['data.url = "http://x/y"', "S3"]),
        (NAMED + "[sandbx]\nx = 1", ["sandbx: unknown key"]),
        (
            NAMED + "[volumes]\nmount = '/shared'",
            ['volumes = { mount = "/shared" }: must be tables, each written as [[volumes]]'],
        ),
        (NAMED + "[[volumes]]\nmount = '/a'", ["volumes[0].source: missing"]),
        (
            NAMED + "[[volumes]]\nmount = '/a'\nsource = 'head'\nkep = true",
            ['volumes[0].kep: unknown key; did you mean "keep"?'],
        ),
        (NAMED + "keep = true", ["keep: unknown key; did you mean [[volumes]] keep?"]),
        (
            NAMED + "[[volumes]]\nmount = '/a'\nsource = 'head'\n[[volumes]]\nmount = '/b'\nsource = 'head'",
            ['[[volumes]] source = "head" appears 2 times (/a, /b)'],
        ),
        (
            NAMED + "cloud = 'hosts'\n[[volumes]]\nmount = '/a'\nsource = 'head'",
            ['volumes[0].source = "head": needs instances of EC2'],
        ),
    ],
)
def test_a_mistake_is_named_with_its_key_and_what_is_allowed(text: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text)
    assert raised.value.exit_code == 2
    for words in said:
        assert words in raised.value.message


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        parse("nodes = 1\n[provision]\nnodes = -1\nnodez = 2\n")
    assert len(raised.value.message.splitlines()) == 4


def test_each_wrong_entry_of_a_list_is_reported() -> None:
    with pytest.raises(ConfigError) as raised:
        parse(NAMED + "[bootstrap]\npackages = ['$(id)', 'numpy', 3]\nsync = ['/x', 'y', '../z']\n")
    starts = ['packages[0] = "$(id)":', "packages[2] = 3:", 'sync[0] = "/x":', 'sync[2] = "../z":']
    lines = raised.value.message.splitlines()
    assert len(lines) == len(starts)
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(f"cluster.toml: bootstrap.{start}")


@pytest.mark.parametrize("env", ["{TOKEN = 31337}", "'TOKEN=31337'", "['TOKEN=31337']", '{TOKEN = "31337\\u0000"}'])
def test_the_value_of_a_variable_is_not_shown(env: str) -> None:
    with pytest.raises(ConfigError, match=r"train\.env") as raised:
        parse(f"{NAMED}[train]\nenv = {env}\n")
    assert "31337" not in raised.value.message


def test_the_error_for_a_missing_file_says_how_to_create_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file") as raised:
        load_config(tmp_path / "cluster.toml")
    assert raised.value.hint == "cluster init"


@pytest.mark.parametrize(
    "content",
    [
        b"name = ",
        b"name = 'a'\nname = 'b'\n",
        b"\xff\xfe",
        b"[a\n",
        b"name = " + b"[" * 5000 + b"]" * 5000,
        b"name = " + b"{a = " * 5000 + b"1" + b"}" * 5000,
        b"[provision]\nnodes = " + b"9" * 5000,
    ],
    ids=["half", "twice", "bytes", "table", "deep list", "deep table", "digits"],
)
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cluster.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"cluster\.toml"):
        load_config(path)


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(NAMED + "[provision]\nnodes = 2\n")
    assert load_config(path, {"provision.nodes": 4, "train.kv_store": "local"}).provision.nodes == 4
    with pytest.raises(ConfigError, match=r"provision\.nodes = -3"):
        load_config(path, {"provision.nodes": -3})


@pytest.mark.parametrize(("nodes", "min_nodes"), [(0, "all"), (1, "all"), (2, 2), (8, 2)])
def test_min_nodes_is_checked_against_the_nodes_of_the_file(tmp_path: Path, nodes: int, min_nodes: str | int) -> None:
    (tmp_path / "cluster.toml").write_text('name = "demo"\n[provision]\nnodes = 4\nmin_nodes = 2\n')
    app = App(config_path=tmp_path / "cluster.toml")
    assert override_nodes(app, nodes) == 4
    assert (app.config.provision.nodes, app.config.provision.min_nodes) == (nodes, min_nodes)
