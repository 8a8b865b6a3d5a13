"""Clusters that were launched from a folder, whose cluster.toml names another one now, or is gone."""

import tomllib
from pathlib import Path

import pytest

from cluster.config import parse_config
from cluster.folders import find_left
from project import Project
from provision.cost import storage
from provision.cost.ledger import Ledger, LedgerNode, Period
from provision.files import ClusterFiles

RUNNING = (Period(start=1.8e9, end=None),)
ENDED = (Period(start=1.8e9, end=1.8e9 + 60),)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A folder from which cluster `old` was launched in AWS."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    make_cluster(tmp_path, "old", tmp_path)
    return Project(tmp_path)


def make_cluster(
    tmp_path: Path, name: str, folder: Path, periods: tuple[Period, ...] = RUNNING, *, ended_at: float | None = None
) -> ClusterFiles:
    files = ClusterFiles(tmp_path / "state" / "cluster" / "aws" / "us-east-1" / name)
    files.note_launch(folder, account="123456789012")
    nodes = tuple(
        LedgerNode(
            instance_id=f"i-{at}", name=f"node-{at}", region="us-east-1", instance_type="c5.xlarge", market="on-demand",
            zone="us-east-1a", launched_at=1.8e9, periods=periods, usd_per_hour=0.17, disk_gib=100, ended_at=ended_at,
        )
        for at in range(2)
    )  # fmt: skip
    storage.update(files.root, lambda _: Ledger(nodes=nodes, seen={"us-east-1": 1.8e9}, usd_per_gib_month=0.08))
    return files


@pytest.mark.parametrize(
    ("now", "is_named"),
    [
        ('name = "old"\ncloud = "aws"\n', False),
        ('name = "new"\ncloud = "aws"\n', True),
        ('name = "old"\ncloud = "aws"\nprovision = {region = "us-west-2"}\n', True),
        ('name = "old"\ncloud = "sandbox"\n', True),
        ("", True),  # cluster.toml was deleted
    ],
)
def test_a_cluster_that_cluster_toml_does_not_name(project: Project, now: str, *, is_named: bool) -> None:
    config = parse_config(tomllib.loads(now), source="cluster.toml") if now else None
    message = (
        "cluster old in us-east-1, launched from this folder, is not deleted: 2 nodes cost $0.36 per hour, as of "
        '2027-01-15 08:00 UTC (to delete it: set name = "old" in cluster.toml, then cluster down)'
    )
    assert list(find_left(project.directory, config)) == ([message] if is_named else [])


def test_other_folders_clusters_and_ended_ones_are_not_named(project: Project, tmp_path: Path) -> None:
    make_cluster(tmp_path, "elsewhere", tmp_path / "other")
    make_cluster(tmp_path, "ended", project.directory, ENDED, ended_at=1.8e9)
    make_cluster(tmp_path, "stopped", project.directory, ENDED)  # its disks cost money
    make_cluster(tmp_path, "deleted", project.directory).forget()
    assert [text.split()[1] for text in find_left(project.directory, None)] == ["old", "stopped"]


def test_commands_name_it_without_cluster_toml(project: Project) -> None:
    output = project.run("status", code=2).stderr
    assert "cluster old in us-east-1, launched from this folder, is not deleted" in output
    assert "there is no such file" in output
    assert "old" not in project.run("-c", "nope.toml", "status", code=2).stderr  # only that this file is missing
