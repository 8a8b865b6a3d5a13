"""The request that `cluster train` makes of its words, its options and cluster.toml together."""

from pathlib import Path

import pytest

from cluster.app import App
from cluster.commands.job.train import train
from cluster.nodes.hosts import HostSource
from cluster.submission.request import TrainRequest
from cluster.submission.submit import read_request
from foundation.errors import UsageError


@pytest.fixture
def project(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own.py").touch()
    monkeypatch.chdir(tmp_path)
    return app


def request(app: App, line: str, settings: str = "") -> TrainRequest:
    app.config_path.write_text(f'name = "c"\ncloud = "sandbox"\n[train]\n{settings}\n')
    options = train.make_context("cluster train", line.split()).params
    words, is_command = options.pop("words"), options.pop("is_command")
    return read_request(app, words, options, is_command=is_command)


@pytest.mark.parametrize(
    ("line", "settings"),
    [("--cwd sub python own.py", ""), ("--cwd sub torchrun own.py", ""), ("python own.py", 'cwd = "sub"')],
)
def test_a_commands_script_is_in_the_folder_of_the_job(project: App, line: str, settings: str) -> None:
    assert request(project, line, settings).command == ("python", "own.py")
    assert project.config.train.cwd == "sub"


def test_a_commands_script_may_be_only_on_the_nodes(project: App) -> None:
    assert request(project, "python there.py", 'sync_dst_dir = "/srv/app"').command == ("python", "there.py")
    assert request(project, "python /opt/in/the/image.py").command == ("python", "/opt/in/the/image.py")
    with pytest.raises(UsageError, match=r"onw\.py: there is no such script") as raised:
        request(project, "--cwd sub python onw.py", 'sync_dst_dir = ""')
    assert raised.value.hint == "cluster train own.py"


@pytest.mark.parametrize(("line", "settings"), [("--cwd sub -- python {}", ""), ("python {}", 'cwd = "sub"')])
def test_an_own_script_in_the_folder_of_the_job_precedes_a_shipped_one(project: App, line: str, settings: str) -> None:
    name = "train_mnist.py"
    assert request(project, line.format(name), settings).command == ()
    (project.project_dir / "sub" / name).touch()
    assert request(project, line.format(name), settings).command == ("python", name)


@pytest.mark.parametrize(("image", "server"), [("localhost/one", ""), ("r.example.com/two", "r.example.com")])
def test_another_image_needs_no_login_for_the_registry_of_the_usual_one(project: App, image: str, server: str) -> None:
    registry = '{ server = "r.example.com", username = "me", password_env = "P" }'
    request(project, f"--image {image} sub/own.py", f'[container]\nimage = "r.example.com/one"\nregistry = {registry}')
    assert (project.config.container.image, project.config.container.registry.server) == (image, server)


def test_nodes_of_hosts_that_only_train_lists(project: App) -> None:
    project.config_path.write_text('name = "c"\ncloud = "hosts"\n[train]\nhosts = ["127.0.0.1", "127.0.0.2"]\n')
    options = train.make_context("cluster train", ["--nodes", "1", "sub/own.py"]).params
    read_request(project, options.pop("words"), options, is_command=options.pop("is_command"))
    nodes = HostSource(project).describe()
    assert nodes.select(project.config.train.nodes, requested=1) == ("127.0.0.1",)


@pytest.mark.parametrize("line", ["mpirun -np 2 python sub/own.py", "torchrun sub/own.py"])
def test_a_launcher_that_no_batch_scheduler_has(project: App, line: str) -> None:
    """Its processes would run on nodes that the scheduler has not assigned."""
    with pytest.raises(UsageError, match="on nodes from Slurm, nothing starts processes as "):
        request(project, line, 'launcher = "slurm"')
