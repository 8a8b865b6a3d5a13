"""`cluster bench` on two sandbox nodes, with the real MXNet."""

import json

import pytest

from project import Project

pytestmark = pytest.mark.sandbox


LOCAL = ("train", "--kv-store", "local", "-n", "1")  # no scheduler and servers, which import MXNet


def test_while_a_job_runs_nothing_is_measured(two_nodes: Project) -> None:
    job = two_nodes.run(*LOCAL, "--detach", "--name", "other", "--", "sleep", "600").stdout.strip()
    try:
        for words in (("bench",), ("verify", "--deep")):
            done = two_nodes.run(*words, code=1)
            assert done.stdout == ""
            assert f"job {job} (other) is " in done.stderr
            assert f"cluster stop {job}" in done.stderr
    finally:
        two_nodes.run("stop", job)


@pytest.mark.slow
def test_the_kv_store_is_measured_and_its_sums_are_checked(two_nodes: Project) -> None:
    done = two_nodes.run("bench", "kvstore", "--json")
    found = [(check["node"], check["subject"], check["unit"], check["value"] > 0) for check in json.loads(done.stdout)]
    assert sorted(found) == [(f"node-{number}", "dist_sync push and pull", "MB/s", True) for number in range(2)]
    assert json.loads(two_nodes.run("jobs", "--json").stdout)[0]["name"] == "bench-kvstore"
