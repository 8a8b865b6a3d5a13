"""The nodes' own role, and the operator's least policy: every call of a real run is one that they allow."""

import json
import re
from typing import Any

import pytest

from ec2_sandbox.paths import find_leftovers, paths_of
from iam_calls import find_denied
from project import Project, shipped

pytestmark = pytest.mark.sandbox


def calls(project: Project) -> list[dict[str, Any]]:
    return [json.loads(line) for line in project.run("sandbox", "log", "--json").stdout.splitlines()]


def called_by(project: Project, caller: str) -> list[dict[str, Any]]:
    """The calls by this caller, without the dry run of the end of a node that does not exist."""
    found = [call for call in calls(project) if caller in (call["caller"] or "")]
    return [call for call in found if not call["dry_run"] or call["action"] == "RunInstances"]


@pytest.mark.slow
def test_every_command_works_with_the_printed_policy(project: Project) -> None:
    args = ["--num-epochs", "2", "--data-train", "s3://cluster-demo/digits/train/"]
    project.write(shipped(instance_profile="auto", results="s3://cluster-demo/results/", args=args))
    project.run("data", "demo", "digits")
    project.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")
    assert "cluster-us-east-1-demo" in project.run("up", "--dry-run").stdout
    project.run("up")
    project.run("verify")
    done = project.run("train")
    assert set(re.findall(r"\[worker \d (node-\d)\].*Train-accuracy", done.stdout)) == {"node-0", "node-1"}
    project.run("resize", "3")
    project.run("resize", "1")
    project.run("stop", "--nodes", "--yes")
    project.run("start", "--yes")
    project.run("allow")
    project.run("status", "--json")
    project.run("list", "--json")
    project.run("data", "get", "s3://cluster-demo/digits/val/", "back/")
    project.run("data", "rm", "--recursive", "--yes", "s3://cluster-demo/digits/")

    receipt = project.run("down").stdout

    assert re.search(r"left +nothing", receipt)
    assert not find_denied(called_by(project, ":user/operator"), project.run("iam-policy").stdout)
    assert not called_by(project, ":federated-user/")
    by_nodes = called_by(project, ":assumed-role/")
    assert {"GetObject", "PutObject"} <= {call["action"] for call in by_nodes}
    *_, policy = [call["parameters"]["PolicyDocument"] for call in calls(project) if call["action"] == "PutRolePolicy"]
    assert not find_denied(by_nodes, policy)
    made = {call["action"] for call in calls(project)}
    assert {"PutRolePolicy", "DeleteRole", "CreateTags", "StopInstances", "StartInstances"} <= made
    project.run("sandbox", "stop", "--yes")
    assert not find_leftovers(paths_of(project.directory))


def test_nodes_without_the_profile_run_no_job(two_nodes: Project) -> None:
    with two_nodes.configured(instance_profile="auto"):
        done = two_nodes.run("train", "--kv-store", "local", "-n", "1", "--", "true", code=1)
    assert "node-0: this instance has no credentials" in done.stderr
    assert "[worker" not in done.stdout
