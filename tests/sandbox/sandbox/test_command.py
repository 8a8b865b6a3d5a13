"""`cluster sandbox ...` as a user types it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ec2_sandbox import control
from ec2_sandbox.config import FolderSettings
from ec2_sandbox.paths import find_leftovers as leftovers_of
from ec2_sandbox.paths import paths_of, read_arguments, remove_all
from foundation.progress import silent
from project import CLUSTER, Project, project_in, shipped
from sandbox_steps import find_leftovers
from waits import until

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project whose sandbox runs, without hosts; each test leaves it running and its cluster.toml as it was."""
    text = shipped(sandbox__hosts="none", faults=["no-boot"])
    with project_in(tmp_path_factory.mktemp("command"), text) as project:
        project.run("sandbox", "start")
        yield project


def test_start_status_and_reset(project: Project) -> None:
    assert project.run("sandbox", "status").stdout == "the sandbox of this folder is not running\n"
    assert project.run("sandbox", "stop").stdout == ""
    for command in ("env", "faults"):
        assert "cluster sandbox start" in project.run("sandbox", command, code=1).stderr
    endpoint = project.run("sandbox", "start").stdout.strip()
    assert endpoint.startswith("https://")
    assert project.run("sandbox", "start").stdout.strip() == endpoint
    status = project.run("sandbox", "status", "--json")
    assert json.loads(status.stdout)["endpoint_url"] == endpoint
    assert endpoint in project.run("sandbox", "status").stdout
    secret = next(line for line in project.run("sandbox", "env").stdout.splitlines() if "SECRET" in line).split("=")[1]
    assert secret not in status.stdout
    project.run("sandbox", "stop")  # asks nothing: there are no nodes and no objects
    assert not find_leftovers(project.directory)
    assert "this folder has no sandbox" in project.run("sandbox", "stop").stderr


def test_a_sandbox_whose_folder_was_moved_is_listed_and_pruned(tmp_path: Path) -> None:
    project = Project(tmp_path / "before")
    project.directory.mkdir()
    project.write(shipped())
    project.run("sandbox", "start")
    try:
        paths = paths_of(project.directory)
        moved = Project(project.directory.rename(tmp_path / "after"))
        (found,) = (one for one in json.loads(moved.run("sandbox", "list", "--json").stdout) if one["id"] == paths.id)
        assert (found["state"], found["folder"]) == ("folder-gone", str(project.directory))
        control.prune([paths.id], report=silent)  # the command would also remove what other tests have crashed
        assert not leftovers_of(paths)
    finally:
        remove_all(paths_of(project.directory))


def test_env_and_log(running: Project) -> None:
    """Tools reach the sandbox, and the log shows their calls."""
    own = {"AWS_PROFILE": "mine", "AWS_ENDPOINT_URL_S3": "https://elsewhere.invalid", "AWS_SESSION_TOKEN": "mine"}
    own["HTTPS_PROXY"] = "http://127.0.0.1:9"  # does not reach the sandbox
    python = (
        "import boto3, os; print(os.environ.get('AWS_PROFILE')); "
        "boto3.client('s3').create_bucket(Bucket='logged'); boto3.client('ec2').describe_vpcs()"
    )
    done = subprocess.run(
        ["bash", "-euc", f'eval "$({CLUSTER} sandbox env)"; {os.path.dirname(CLUSTER)}/python -c "{python}"'],
        cwd=running.directory, env={**running.environment(), **own}, capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    assert done.stdout == "None\n"
    calls = [json.loads(line) for line in running.run("sandbox", "log", "--json").stdout.splitlines()]
    assert [(call["service"], call["action"], call["resource"], call["status"]) for call in calls] == [
        ("s3", "CreateBucket", "logged", 200),
        ("ec2", "DescribeVpcs", None, 200),
    ]
    assert "s3 CreateBucket" in running.run("sandbox", "log").stdout


def test_faults_from_the_file_and_from_the_command_line(running: Project) -> None:
    armed = running.run("sandbox", "fault", "throttle", "action=DescribeVpcs", "--count", "2").stdout.strip()
    listed = json.loads(running.run("sandbox", "faults", "--json").stdout)
    assert [(fault["kind"], fault["left"]) for fault in listed] == [("no-boot", 1), ("throttle", 2)]
    assert "throttle action=DescribeVpcs  (2 left; took effect: 0)" in running.run("sandbox", "faults").stdout
    assert armed in running.run("sandbox", "disarm", armed).stdout
    refused = running.run("sandbox", "fault", "throtle", code=2).stderr
    assert 'did you mean "throttle"?' in refused
    assert "cluster sandbox fault --help" in refused
    running.run("sandbox", "disarm", "all")
    assert "no fault is armed" in running.run("sandbox", "faults").stderr
    assert "capacity [zone=]" in running.run("sandbox", "fault", "--help").stdout


def test_changes_of_the_file_take_effect_later(running: Project) -> None:
    with running.configured(boot_delay_s=5.0):
        assert "the settings have changed" in running.run("sandbox", "start").stderr
    with running.configured(region="eu-west-1"):
        for words in (("status",), ("up", "--dry-run"), ("data", "ls")):
            output = running.run(*words, code=1).stderr
            assert 'runs in region us-east-1, and [provision] region = "eu-west-1"' in output
            assert 'set region = "us-east-1", or remove the sandbox and its content: cluster sandbox stop' in output


def test_stop_asks_before_it_deletes_objects(running: Project) -> None:
    python = (
        "import boto3; s3 = boto3.client('s3'); s3.create_bucket(Bucket='kept'); s3.put_object(Bucket='kept', Key='k')"
    )
    running.run("sandbox", "shell", "--", sys.executable, "-c", python)
    refused = running.run("sandbox", "stop", code=2).stderr
    assert "without a terminal, this needs --yes: The sandbox has 1 object. Delete it with its content?" in refused
    assert running.run("sandbox", "status").stdout.startswith("running")


def test_an_interrupted_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_paths: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(control, "launch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        control.start(tmp_path, FolderSettings(hosts="none"), report=silent)
    assert not leftovers_of(paths_of(tmp_path))


def test_the_next_start_cleans_up_after_a_crash(running: Project) -> None:
    pid = json.loads(running.run("sandbox", "status", "--json").stdout)["pid"]
    os.kill(pid, 9)
    until(lambda: not read_arguments(pid), "the daemon does not end")
    assert "crashed" in running.run("sandbox", "status").stdout
    assert re.search(rf"^crashed .* {running.directory}$", running.run("sandbox", "list").stdout, re.MULTILINE)
    assert "has crashed, and its clusters ended with it" in running.run("exec", "true", code=1).stderr
    assert "had crashed" in running.run("sandbox", "start").stderr
    assert json.loads(running.run("sandbox", "status", "--json").stdout)["pid"] != pid
