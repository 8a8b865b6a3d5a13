"""`cluster sandbox ...` as a user types it."""

import json
import os
import subprocess

import pytest

from project import CLUSTER, Project
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
    assert "crashed" in project.run("sandbox", "status").stdout
    assert "had crashed" in project.run("sandbox", "start").stderr
    assert json.loads(project.run("sandbox", "status", "--json").stdout)["pid"] != pid
