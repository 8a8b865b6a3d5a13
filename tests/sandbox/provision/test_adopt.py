"""Instances with a cluster's tag that this machine did not launch are its nodes once they are adopted."""

import json
import shutil
from pathlib import Path

import pytest

from project import Project

pytestmark = pytest.mark.sandbox


def nodes_of(project: Project) -> list[str]:
    return [node["name"] for node in json.loads(project.run("status", "--json").stdout)["nodes"]]


def test_a_second_laptop_adopts_the_cluster(two_nodes: Project, tmp_path: Path) -> None:
    """It has the project and, of the first laptop's files, only the private key."""
    [key] = (two_nodes.directory / "state").rglob("id_ed25519")
    place = tmp_path / "state" / key.relative_to(two_nodes.directory / "state")
    place.parent.mkdir(parents=True, mode=0o700)
    shutil.copy(key, place)
    second = Project(two_nodes.directory, env={"XDG_STATE_HOME": str(tmp_path / "state")})

    for words in (["exec", "--", "true"], ["train"], ["ssh"], ["jobs"]):
        told = second.run(*words, code=1).stderr
        assert "no nodes that this machine launched" in told
        assert "cluster adopt" in told
    assert nodes_of(second) == []
    launching = second.run("up", "--dry-run").stdout
    assert "cluster adopt" in launching
    assert "left alone" in launching

    second.run("adopt", "--yes")

    assert nodes_of(second) == ["node-0", "node-1"]
    assert second.run("exec", "--", "echo", "hello").stdout.count("hello") == 2
    assert "nothing to adopt" in second.run("adopt", "--yes").stderr
