"""`cluster results`: a job's files on this machine."""

from contextlib import ExitStack

import pytest

from cluster.app import App
from cluster.nodes import results
from cluster.nodes.ec2 import nodes_of
from cluster.nodes.results import JobResults, find_copies
from foundation.errors import ClusterError
from job_records import make_record, make_state


def test_what_nodes_have_does_not_come_from_s3_too() -> None:
    names = {"node-0": ["output/a/pred 0.txt", "model.params"], "node-1": ["output/b"]}
    assert find_copies(names) == {"output/node-0/a/pred 0.txt", "output/node-1/b"}


def test_the_files_of_a_stopped_node_are_not_gone(app: App) -> None:
    """Those of one that has ended are."""
    hosts = [{"name": f"node-{at}", "instance_id": f"i-{at}"} for at in range(2)]
    files = [{"host": f"node-{at}", "count": 1} for at in range(2)]
    record, found = make_record(1, nodes=hosts, files=files), JobResults()
    app.config_path.write_text('name = "demo"\n')
    nodes = nodes_of(app, make_state("stopped"))
    with ExitStack() as stack:
        assert results._find_connects(app, record, nodes, found, stack) == {}
    assert {name: error.hint for name, error in found.errors.items()} == {"node-0": "cluster start"}
    assert found.gone == ("node-1",)
    with pytest.raises(ClusterError, match=r"node-0 .* is stopped") as caught:
        results.copy_results(app, record, found, app.config_path.parent)
    assert caught.value.hint == "cluster start; then run the command again: it copies what is missing"
