"""`cluster verify --deep` on three nodes, of which one has a slow link."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ec2_sandbox import control
from project import REPOSITORY, Project, cluster_in, configure

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    text = (REPOSITORY / "cluster.toml").read_text().replace("nodes = 2", "nodes = 3")
    text = configure(text, framework="none")
    with cluster_in(tmp_path_factory.mktemp("deep"), text) as project:
        file = project.directory / "digits" / "data.bin"
        file.parent.mkdir()
        file.write_bytes(bytes(20_000_000))
        project.run("data", "put", "--create-bucket", str(file.parent), "s3://cluster-demo/digits/")
        yield project


def instance(project: Project, name: str) -> str:
    nodes = json.loads(project.run("status", "--json").stdout)["nodes"]
    return str(next(node["instance_id"] for node in nodes if node["name"] == name))


def test_the_node_with_a_slow_link_is_named(cluster: Project) -> None:
    control.cause_fault(cluster.directory, f"link instance={instance(cluster, 'node-1')} mbit=40")
    done = cluster.run("verify", "--deep", "--json", code=1)
    checks: list[dict[str, Any]] = json.loads(done.stdout)
    measures = {(check["node"], check["subject"]): check for check in checks if check["check"] == "measure"}
    names = [f"node-{number}" for number in range(3)]
    assert sorted(measures) == [
        (name, subject) for name in names for subject in ("DCGM level 2", "GPUs", "S3 read", "disk read", "disk write")
    ]
    assert [check["node"] for check in checks if check["subject"] == "S3 read" and check["status"] == "failed"] == [
        "node-1"
    ]
    assert measures["node-1", "S3 read"]["value"] < 0.6 * measures["node-1", "S3 read"]["median"]
    for name in names:
        assert measures[name, "disk write"]["value"] > 0
        assert measures[name, "GPUs"]["said"] == "not measured: no framework"
        assert measures[name, "DCGM level 2"]["said"] == "not measured: no dcgmi"
    assert "node-1: measure, S3 read" in done.stderr
    assert "cause: it is far from the others" in done.stderr
    assert "measuring takes one to four minutes" in done.stderr
    left = cluster.run("exec", "--", "find", ".", "/tmp", "-xdev", "-type", "f", "-size", "+10M", code=None).stdout
    assert "tmp" not in left
