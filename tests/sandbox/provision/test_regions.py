"""`cluster up` in the second region, with real hosts: every command finds the cluster, and `down` leaves nothing."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from mypy_boto3_ec2.type_defs import FilterTypeDef

from foundation.progress import silent
from project import REPOSITORY, Project, configure
from sandbox import control
from sandbox_steps import RunningSandbox, enter

pytestmark = pytest.mark.sandbox

HERE, THERE = "us-east-1", "us-west-2"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    text = configure((REPOSITORY / "cluster.toml").read_text(), regions=[THERE], framework="none")
    made.write(text.replace("nodes = 2\n", "nodes = 1\n", 1))
    try:
        yield made
    finally:
        control.reset(tmp_path, report=silent)


def count_resources(region: str) -> dict[str, int]:
    """Counts a cluster's resources in a region of the sandbox."""
    ec2 = boto3.client("ec2", region_name=region)
    live: list[FilterTypeDef] = [
        {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}
    ]
    groups = [group for group in ec2.describe_security_groups()["SecurityGroups"] if group["GroupName"] != "default"]
    reservations = ec2.describe_instances(Filters=live)["Reservations"]
    return {
        "instances": sum(len(one["Instances"]) for one in reservations),
        "keys": len(ec2.describe_key_pairs()["KeyPairs"]),
        "groups": len(groups),
    }


def test_the_cluster_is_in_the_region_that_has_room(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.run("sandbox", "start")
    project.run("sandbox", "fault", "capacity", f"zone={HERE}*")
    done = project.run("up", "--yes")
    assert f"{HERE} cannot give the nodes" in done.stderr
    assert f"trying {THERE}" in done.stderr
    info = control.find_running(project.directory)
    assert info is not None
    running = RunningSandbox(project_dir=project.directory, info=info, environment=control.environment(info))
    enter(running, monkeypatch)
    nothing = {"instances": 0, "keys": 0, "groups": 0}
    assert count_resources(HERE) == nothing
    assert count_resources(THERE) == {"instances": 1, "keys": 1, "groups": 1}
    status = json.loads(project.run("status", "--json").stdout)
    assert [node["zone"][:-1] for node in status["nodes"]] == [THERE]
    listed = json.loads(project.run("list", "--json").stdout)
    assert [(each["name"], each["region"], each["key_here"]) for each in listed] == [("demo", THERE, True)]
    trained = project.run("train", "--kv-store", "none", "--launcher", "env", "--", "hostname")
    assert re.search(r"ip-\d+-\d+-\d+-\d+", trained.stdout)
    project.run("sandbox", "disarm", "all")
    assert "there was nothing to do" in project.run("up", "--yes").stderr
    receipt = json.loads(project.run("down", "--yes", "--json").stdout)
    assert receipt["gone"]
    assert count_resources(HERE) == count_resources(THERE) == nothing
