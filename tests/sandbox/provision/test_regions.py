"""A cluster in the second region, on real hosts: all commands find it, its lease ends it, and `down` leaves nothing."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

from job_steps import ec2_of
from project import Project, project_in, shipped
from waits import until

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef

pytestmark = pytest.mark.sandbox

HERE, THERE = "us-east-1", "us-west-2"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    text = shipped(provision__nodes=1, regions=[THERE], framework="none", launcher="env")
    with project_in(tmp_path, text) as made:
        made.run("sandbox", "start")
        ec2_of(made, monkeypatch)
        yield made


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


def test_a_cluster_where_there_is_room_ends_when_idle(project: Project) -> None:
    """All commands find it. It ends, `status` says why, and `down` removes the rest."""
    project.run("sandbox", "fault", "capacity", f"zone={HERE}*")
    done = project.run("up", "--yes")
    assert f"{HERE} cannot give the nodes" in done.stderr
    assert f"trying {THERE}" in done.stderr
    assert count_resources(HERE) == NOTHING
    assert count_resources(THERE) == {"instances": 1, "keys": 1, "groups": 1}
    listed = json.loads(project.run("list", "--json").stdout)
    assert [(each["name"], each["region"], each["key_here"]) for each in listed] == [("demo", THERE, True)]
    assert re.search(r"ip-\d+-\d+-\d+-\d+", project.run("train", "--", "hostname").stdout)
    shown = project.run("status").stdout
    assert THERE in shown
    assert "lease  ends after 1h without use" in shown
    changed = json.loads(project.run("lease", "+2h", "--idle", "6s", "--yes", "--json").stdout)
    assert [node["error"] for node in changed["nodes"]] == [None]
    assert 7000 < changed["lease"]["remaining_s"] <= 7200
    # Not with `status`, whose ssh session is a login.
    until(lambda: count_resources(THERE)["instances"] == 0, "the end of the lease", timeout_s=130)
    ended = json.loads(project.run("status", "--json").stdout)
    assert (ended["state"], ended["lease_ended"]) == ("ended", "its lease ended it (idle = 6s)")
    receipt = json.loads(project.run("down", "--yes", "--json").stdout)
    assert receipt["gone"]
    assert receipt["lease_ended"] == "its lease ended it (idle = 6s)"
    assert receipt["cost_usd"] > 0
    assert count_resources(HERE) == count_resources(THERE) == NOTHING
