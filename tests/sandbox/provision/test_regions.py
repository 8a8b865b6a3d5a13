"""A cluster in the second region, on real hosts: all commands find it, its lease ends it, and `down` leaves nothing."""

import json
import re
import time
from collections.abc import Iterator

import boto3
import pytest
from mypy_boto3_ec2.type_defs import FilterTypeDef

from ec2_sandbox import control
from foundation.progress import silent
from job_steps import ec2_of, hosts_of
from project import REPOSITORY, Project, configure
from waits import until

pytestmark = pytest.mark.sandbox

HERE, THERE = "us-east-1", "us-west-2"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A folder with a cluster.toml. The first row brings the cluster up, the last one deletes it."""
    made = Project(tmp_path_factory.mktemp("regions"))
    made.write(configure((REPOSITORY / "cluster.toml").read_text(), regions=[THERE], framework="none"))
    try:
        made.run("sandbox", "start")
        yield made
    finally:
        control.reset(made.directory, report=silent)


@pytest.fixture
def project(shared: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    ec2_of(shared, monkeypatch)
    return shared


NOTHING = {"instances": 0, "keys": 0, "groups": 0}


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


def test_the_cluster_is_in_the_region_that_has_room(project: Project) -> None:
    project.run("sandbox", "fault", "capacity", f"zone={HERE}*")
    done = project.run("up", "--yes")
    assert f"{HERE} cannot give the nodes" in done.stderr
    assert f"trying {THERE}" in done.stderr
    assert count_resources(HERE) == NOTHING
    assert count_resources(THERE) == {"instances": 2, "keys": 1, "groups": 1}
    status = json.loads(project.run("status", "--json").stdout)
    assert {node["zone"][:-1] for node in status["nodes"]} == {THERE}
    listed = json.loads(project.run("list", "--json").stdout)
    assert [(each["name"], each["region"], each["key_here"]) for each in listed] == [("demo", THERE, True)]
    trained = project.run("train", "--kv-store", "none", "--launcher", "env", "--", "hostname")
    assert re.search(r"ip-\d+-\d+-\d+-\d+", trained.stdout)
    project.run("sandbox", "disarm", "all")
    assert "there was nothing to do" in project.run("up", "--yes").stderr


def test_an_idle_cluster_ends_and_says_so(project: Project) -> None:
    """A running command keeps the cluster. Afterwards it ends, `status` says why, and `down` removes the rest."""
    assert "lease  ends after 1h without use" in project.run("status").stdout
    with project.following("exec", "--", "sleep", "1000"):
        until(lambda: "is logged in" in project.run("lease").stdout, "the login")
        asked = project.run("lease", "--idle", "1s", code=2).stderr
        assert "in 1s: idle = 1s. Change the lease?" in asked
        changed = json.loads(project.run("lease", "+2h", "--idle", "6s", "--yes", "--json").stdout)
        assert [node["answered"] for node in changed["nodes"]] == [True, True]
        assert 7000 < changed["lease"]["remaining_s"] <= 7200
        time.sleep(16)
        assert json.loads(project.run("status", "--json").stdout)["node_counts"] == {"running": 2}
    # Not with `status`, whose ssh session is a login.
    until(lambda: not hosts_of(project), "the end of the lease", timeout_s=130)
    ended = json.loads(project.run("status", "--json").stdout)
    assert (ended["state"], ended["lease_ended"]) == ("ended", "its lease ended it (idle = 6s)")
    shown = project.run("status").stdout
    assert "state  ended: its lease ended it (idle = 6s); cluster down removes what is left, free of charge" in shown
    receipt = json.loads(project.run("down", "--yes", "--json").stdout)
    assert receipt["gone"]
    assert receipt["lease"] == "its lease ended it (idle = 6s)"
    assert receipt["cost_usd"] > 0
    assert count_resources(HERE) == count_resources(THERE) == NOTHING
