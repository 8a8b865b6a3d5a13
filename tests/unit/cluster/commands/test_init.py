"""`cluster init`, and the folders in which commands look for cluster.toml."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.commands.init import SCRIPTS, TEMPLATES, choose_name
from cluster.config import load_config
from cluster.last_known import find_above
from cluster.main import cli
from foundation.errors import ClusterError, UsageError
from project import REPOSITORY
from train.job.payload import shipped_scripts


def run(*words: str) -> str:
    done = CliRunner().invoke(cli, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    ("folder", "user", "name"),
    [
        ("mnist", "alice", "mnist-alice"),
        ("My Project!", "Bob.Smith", "my-project-bob-smith"),
        ("a" * 40, "b" * 40, f"{'a' * 15}-{'b' * 15}"),
        ("2nd", "", "nd"),
        ("", "", "cluster"),
        ("7", "9", "cluster"),
    ],
)
def test_names_come_from_the_folder_and_the_user(folder: str, user: str, name: str) -> None:
    assert choose_name(folder, user) == name


def test_the_file_has_the_given_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("init", "--name", "mine", "--cloud", "aws", "--instance-type", "g5.xlarge")
    run("-c", "other.toml", "init")
    run("init", "-c", "third.toml", "--name", "mine")
    mine, other, third = (load_config(Path(name)) for name in ("cluster.toml", "other.toml", "third.toml"))
    assert (mine.name, mine.cloud, mine.provision.instance_type) == ("mine", "aws", "g5.xlarge")
    assert (other.cloud, other.provision.instance_type) == ("sandbox", "c5.xlarge")
    assert mine.data.url is not None
    assert mine.data.url.startswith("s3://cluster-mine-")
    assert len({mine.data.url, other.data.url, third.data.url}) == 3


def test_a_name_that_is_not_allowed_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
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


@pytest.mark.parametrize("words", [("-c", "other.toml", "iam-policy"), ("iam-policy", "-c", "other.toml")])
def test_the_file_is_named_before_or_after_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cluster.toml").write_text('name = "one"')
    Path("other.toml").write_text('name = "other"')
    assert "other" in run(*words)
    assert "other" not in run("iam-policy")


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    monkeypatch.chdir(tmp_path)
    said = run("init", "--template", template, "--name", "mine")
    config = load_config(Path("cluster.toml"))
    text = Path("cluster.toml").read_text()
    assert config.name == "mine"
    assert config.cloud == ("aws" if template == "imagenet" else "sandbox")
    assert "cluster up" in text
    assert "the commands in its first lines" in said
    assert config.train.script in (*shipped_scripts(), *SCRIPTS.values())
    assert "cluster-demo" not in text
    assert max(map(len, text.splitlines())) <= 120
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["cluster.toml", *([SCRIPTS[template]] if template in SCRIPTS else [])]
    )


def test_every_template_is_offered() -> None:
    folder = REPOSITORY / "cluster" / "templates"
    assert {path.stem for path in folder.glob("*.toml")} == set(TEMPLATES)
    assert {path.name for path in folder.glob("*.py")} == set(SCRIPTS.values())


def test_options_take_precedence_over_a_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("init", "--template", "imagenet", "--name", "mine", "--cloud", "sandbox", "--instance-type", "p4d.24xlarge")
    config = load_config(Path("cluster.toml"))
    assert (config.cloud, config.provision.instance_type, config.provision.nodes) == ("sandbox", "p4d.24xlarge", 4)


@pytest.mark.parametrize("name", ["cluster.toml", "train.py"])
def test_a_template_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SCRIPTS, "mnist", "train.py")
    Path(name).write_text("mine")
    with pytest.raises(ClusterError, match=f"{name} exists already; it is left as it is"):
        run("init", "--template", "mnist")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]
