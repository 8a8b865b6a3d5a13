"""`cluster sandbox ...` as a user types it."""

import json
import os
import subprocess
import time

import pytest

from project import CLUSTER, Project
from sandbox.place import read_arguments
from sandbox_steps import find_leftovers

pytestmark = pytest.mark.sandbox


def test_a_sandboxs_life(project: Project) -> None:
    assert project.run("sandbox", "status").stdout == "the sandbox of this folder is not running\n"
    assert project.run("sandbox", "stop").stdout == ""
    failed = project.run("sandbox", "env", code=1)
    assert "cluster sandbox start" in failed.stderr
    endpoint = project.run("sandbox", "start").stdout.strip()
    assert endpoint.startswith("https://")
    assert project.run("sandbox", "start").stdout.strip() == endpoint
    status = project.run("sandbox", "status", "--json")
    assert json.loads(status.stdout)["endpoint_url"] == endpoint
    assert endpoint in project.run("sandbox", "status").stdout
    secret = next(line for line in project.run("sandbox", "env").stdout.splitlines() if "SECRET" in line).split("=")[1]
    assert secret not in status.stdout
    project.run("sandbox", "reset")
    assert not find_leftovers(project.directory)
    assert "there is no sandbox here" in project.run("sandbox", "reset").stderr


def test_env_leads_a_shell_to_the_sandbox_and_away_from_the_users_account(project: Project) -> None:
    project.run("sandbox", "start")
    project.env = {
        "AWS_PROFILE": "mine",
        "AWS_ENDPOINT_URL_S3": "https://elsewhere.invalid",
        "AWS_SESSION_TOKEN": "mine",
    }
    python = "import boto3, os; print(boto3.client('s3').list_buckets()['Buckets'], os.environ.get('AWS_PROFILE'))"
    done = subprocess.run(
        ["bash", "-euc", f'eval "$({CLUSTER} sandbox env)"; {os.path.dirname(CLUSTER)}/python -c "{python}"'],
        cwd=project.directory, env=project.environment(), capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "[] None\n"


def test_crashed_sandbox_says_so_and_is_cleaned_up_by_the_next_start(project: Project) -> None:
    project.run("sandbox", "start")
    pid = json.loads(project.run("sandbox", "status", "--json").stdout)["pid"]
    os.kill(pid, 9)
    deadline = time.monotonic() + 20
    while read_arguments(pid):  # it may take a while to die
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "crashed" in project.run("sandbox", "status").stdout
    assert "had crashed" in project.run("sandbox", "start").stderr
    assert json.loads(project.run("sandbox", "status", "--json").stdout)["pid"] != pid


def test_faults_from_the_file_and_from_the_command_line(project: Project) -> None:
    text = (project.directory / "cluster.toml").read_text()
    project.write(text.replace('# hosts = "real"', 'hosts = "none"').replace("# faults = []", 'faults = ["no-boot"]'))
    assert "cluster sandbox start" in project.run("sandbox", "faults", code=1).stderr
    project.run("sandbox", "start")
    armed = project.run("sandbox", "fault", "throttle", "action=DescribeVpcs", "--count", "2").stdout.strip()
    listed = json.loads(project.run("sandbox", "faults", "--json").stdout)
    assert [(fault["kind"], fault["left"]) for fault in listed] == [("no-boot", 1), ("throttle", 2)]
    assert "throttle action=DescribeVpcs  (2 left, took effect 0 times)" in project.run("sandbox", "faults").stdout
    assert armed in project.run("sandbox", "disarm", armed).stdout
    refused = project.run("sandbox", "fault", "throtle", code=1).stderr
    assert 'did you mean "throttle"?' in refused
    assert "cluster sandbox fault --help" in refused
    project.run("sandbox", "disarm", "all")
    assert "no fault is armed" in project.run("sandbox", "faults").stderr
    assert "capacity [zone=]" in project.run("sandbox", "fault", "--help").stdout


def test_a_change_of_the_file_is_said_to_count_later(project: Project) -> None:
    project.run("sandbox", "start")
    text = (project.directory / "cluster.toml").read_text()
    project.write(text.replace("# boot_delay_s = 0.0", "boot_delay_s = 5.0"))
    assert "[sandbox] is not what the sandbox was started with" in project.run("sandbox", "start").stderr
    project.write(text.replace('region = "us-east-1"', 'region = "eu-west-1"'))
    for words in (("status",), ("up", "--dry-run"), ("data", "ls")):
        said = project.run(*words, code=1).stderr
        assert 'runs in region us-east-1, and [provision] region = "eu-west-1"' in said
        assert 'set region = "us-east-1", or cluster sandbox reset' in said


def test_the_log_of_api_calls(project: Project) -> None:
    project.run("sandbox", "start")
    shell = f'eval "$({CLUSTER} sandbox env)"; {os.path.dirname(CLUSTER)}/python -c "{{}}"'
    python = "import boto3; boto3.client('s3').create_bucket(Bucket='logged'); boto3.client('ec2').describe_vpcs()"
    subprocess.run(
        ["bash", "-euc", shell.format(python)], cwd=project.directory, env=project.environment(), check=True, timeout=60
    )
    calls = [json.loads(line) for line in project.run("sandbox", "log", "--json").stdout.splitlines()]
    assert [(call["service"], call["action"], call["resource"], call["status"]) for call in calls] == [
        ("s3", "CreateBucket", "logged", 200),
        ("ec2", "DescribeVpcs", None, 200),
    ]
    assert "s3 CreateBucket" in project.run("sandbox", "log").stdout
