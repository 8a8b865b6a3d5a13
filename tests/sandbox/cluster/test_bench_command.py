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
    done = two_nodes.run("bench", "--kv-store", "dist_sync_device", "--json", code=None, timeout_s=300)
    # On a busy machine, a node's disk may be far from the other's, which is an error.
    found = {(check["node"], check["subject"]): check for check in json.loads(done.stdout)}
    for number in range(2):
        kv_store = found[f"node-{number}", "dist_sync_device push and pull"]
        assert (kv_store["status"], kv_store["unit"], kv_store["value"] > 0) == ("ok", "MB/s", True)
        assert found[f"node-{number}", "disk write"]["value"] > 0
    assert "compute" not in {check["check"] for check in found.values()}  # it passes
