"""`cluster init`, and the folders in which commands look for cluster.toml."""

import json
import re
import resource
import secrets
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.commands.setup.init import TEMPLATES, choose_name, write_new
from cluster.config import load_config
from cluster.folders import find_above
from cluster.main import cli
from foundation.errors import UsageError
from train.job.payload import shipped_scripts

FILES = ("cluster.toml", "other.toml", "third.toml")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> str:
    done = CliRunner().invoke(cli, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    ("folder", "user", "name"),
    [
        ("My Project!", "Bob.Smith", "my-project-bob-smith"),
        ("a" * 40, "b" * 40, f"{'a' * 15}-{'b' * 15}"),
        ("", "", "cluster"),
        ("Über", "Zoë", "uber-zoe"),
        ("9lives", "", "c9lives"),
    ],
)
def test_names_come_from_the_folder_and_the_user(folder: str, user: str, name: str) -> None:
    assert choose_name(folder, user) == name


def test_the_file_has_the_given_options() -> None:
    run("init", "--name", "mine", "--cloud", "aws", "--instance-type", "g5.xlarge")
    run("-c", "other.toml", "init")
    run("init", "-c", "third.toml", "--name", "mine")
    mine, other, third = (load_config(Path(name)) for name in FILES)
    assert (mine.name, mine.cloud, mine.provision.instance_type) == ("mine", "aws", "g5.xlarge")
    assert (other.cloud, other.provision.instance_type) == ("sandbox", "c5.xlarge")
    urls = {config.data.url for config in (mine, other, third)}  # what train_mnist.py needs
    assert len({url for url in urls if url is not None and re.fullmatch("s3://cluster-.+/digits/", url)}) == 3


def test_a_name_that_is_not_allowed_writes_nothing() -> None:
    with pytest.raises(UsageError, match='name = "My Cluster"'):
        run("init", "--name", "My Cluster")
    assert not Path("cluster.toml").exists()


def test_the_nearest_cluster_toml_above_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert find_above(Path("cluster.toml")) is None
    (tmp_path / "cluster.toml").write_text('name = "top"')
    assert find_above(Path("cluster.toml")) == tmp_path / "cluster.toml"
    (tmp_path / "a" / "cluster.toml").write_text('name = "near"')
    assert find_above(Path("cluster.toml")) == tmp_path / "a" / "cluster.toml"
    assert f"using {tmp_path / 'a' / 'cluster.toml'}" in run("iam-policy")
    run("init", "--name", "own")
    assert load_config(Path("cluster.toml")).name == "own"
    assert find_above(Path("cluster.toml")) is None


@pytest.mark.parametrize("cloud", ["sandbox", "hosts"])
def test_a_short_file_means_the_same_as_a_full_one(cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0" * 2 * size)
    run("init", "--name", "mine", "--cloud", cloud)
    run("-c", "full.toml", "init", "--name", "mine", "--cloud", cloud, "--full")
    assert load_config(Path("cluster.toml")) == load_config(Path("full.toml"))
    short, full = (Path(name).read_text() for name in ("cluster.toml", "full.toml"))
    assert len(re.findall(r"^(?:# )?[a-z_]+ = ", short, re.MULTILINE)) <= 15
    assert ("names = []" in short) == (cloud == "hosts")
    assert short.count("# exclude = []") == 1  # which hints of `init` and `train` set
    assert set(short.splitlines()[3:]) <= {"", *full.splitlines()}


def test_the_schema_is_saved_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    run("init")
    url = Path("cluster.toml").read_text().splitlines()[0].removeprefix("#:schema ")
    path = tmp_path / "my cache" / "cluster" / "cluster.schema.json"
    assert url == path.as_uri()
    assert json.loads(path.read_text()) == json.loads(run("config", "schema"))


def test_a_file_for_all_folders_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "counts in all folders below" in run("init")
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    assert "use this file, and not" in run("init").replace("\n", " ")


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the write fail, as a full disk does."""
    path = tmp_path / "cluster.toml"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, check=lambda error: error.filename.endswith("cluster.toml")):
            write_new(path, "a longer text")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not path.exists()


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates(tmp_path: Path, template: str) -> None:
    output = run("init", "--template", template, "--name", "mine")
    config = load_config(Path("cluster.toml"))
    text = Path("cluster.toml").read_text()
    assert config.name == "mine"
    assert config.cloud == ("aws" if template == "imagenet" else "sandbox")
    assert "cluster up" in text
    assert "the commands in its first lines" in output
    assert config.train.script in shipped_scripts()
    assert "cluster-demo" not in text
    assert max(map(len, text.splitlines())) <= 120
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.toml"]


TORCH = {"train.py": "import os\nfrom torch import nn\n"}
LOCKED = {"pyproject.toml": "[project]\nname='a'\n", "uv.lock": '[[package]]\nname = "torch"\n'}
PINNED = {"train.py": "import mxnet", "requirements.txt": "mxnet==1.9.1\n"}


@pytest.mark.parametrize(
    ("files", "bootstrap", "train"),
    [
        (TORCH, {"framework": "pytorch"}, {"launcher": "torchrun"}),
        ({"train.py": "def f():\n  import mxnet as mx"}, {"framework": "mxnet"}, {"kv_store": "dist_sync"}),
        ({"fit.py": "import nets, mxnet", "nets.py": "import mxnet"}, {}, {"script": "fit.py"}),
        ({"a.py": "import torch", "b.py": "if __name__ == '__main__': import mxnet"}, {}, {"script": "b.py"}),
        ({"train.py": "import net", "net.py": "import torchvision"}, {"framework": "pytorch"}, {}),
        ({"an\N{SNAKE}.py": "import torch"}, {}, {"script": "an\N{SNAKE}.py"}),
        ({"setup.py": "", "src/a/train.py": "import torch"}, {"framework": "pytorch"}, {"script": "src/a/train.py"}),
        ({"train.py": "import jax"}, {"framework": "none"}, {"launcher": "auto"}),
        (TORCH | {"requirements.txt": "torch==2.1.0\nx"}, {"torch": "torch==2.1.0"}, {}),
        (TORCH | {"pyproject.toml": "[project]\ndependencies=['x']"}, {"packages": ("-r pyproject.toml",)}, {}),
        (LOCKED | {"train.py": ""}, {"framework": "pytorch", "project": ".", "packages": ()}, {}),
        (LOCKED, {"framework": "pytorch"}, {"script": "train_mnist_torch.py"}),
        (PINNED, {"mxnet": "mxnet==1.9.1"}, {}),
    ],
)
def test_the_file_fits_the_project(
    files: dict[str, str], bootstrap: dict[str, object], train: dict[str, object]
) -> None:
    """The script is parsed, and never run."""
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(f"{text}\nraise SystemExit('it ran')\n" if name.endswith("n.py") else text)
    run("init")
    config = load_config(Path("cluster.toml"))
    assert {key: getattr(config.bootstrap, key) for key in bootstrap} == bootstrap
    assert {key: getattr(config.train, key) for key in train} == train
    assert config.train.args == ()


@pytest.mark.parametrize(
    ("words", "version", "wanted"),
    [
        ([], "mxnet-cu90==1.5.0", "auto"),
        (["--cloud", "hosts"], "mxnet-cu90==1.5.0", "mxnet-cu90==1.5.0"),
        (["--instance-type", "g5.xlarge"], "mxnet-cu112==1.9.1", "mxnet-cu112==1.9.1"),
        (["--instance-type", "g5.xlarge"], "mxnet==1.9.1", "auto"),
        (["--instance-type", "g99.xlarge"], "mxnet-cu112==1.9.1", "mxnet-cu112==1.9.1"),  # an unknown type
    ],
)
def test_a_wheel_that_does_not_fit_the_nodes(words: list[str], version: str, wanted: str) -> None:
    Path("train.py").write_text("import mxnet")
    Path("requirements.txt").write_text(version)
    output = run("init", *words)
    assert load_config(Path("cluster.toml")).bootstrap.mxnet == wanted
    assert (f"{version} " in output) == (wanted == "auto")
