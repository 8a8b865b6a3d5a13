"""[train] nodes: the nodes that a job uses, and clusters that are too small for it."""

import pytest

from foundation.errors import ClusterError
from provision.model import Market
from train.job.selection import check_nodes, select_nodes

NODES: dict[str, Market] = {"n0": "on-demand", "n1": "spot", "n2": "spot"}


@pytest.mark.parametrize(
    ("selection", "names"),
    [("current", "n0 n1 n2"), ("spot", "n1 n2"), ("on-demand", "n0"), (2, "n0 n1"), ("2..", "n0 n1 n2")],
)
def test_the_nodes_of_a_job(selection: int | str, names: str) -> None:
    assert " ".join(select_nodes(check_nodes(selection), NODES, requested=3)) == names


@pytest.mark.parametrize(
    ("selection", "nodes", "message"),
    [
        ("requested", NODES, "needs 4 nodes, and the cluster has 3"),
        (4, NODES, "needs 4 nodes, and the cluster has 3"),
        ("spot", {"n0": "on-demand"}, "needs 1 spot node, and the cluster has none"),
        ("on-demand", {"n1": "spot"}, "needs 1 on-demand node, and the cluster has none"),
    ],
)
def test_too_few_nodes_are_refused(selection: int | str, nodes: dict[str, Market], message: str) -> None:
    with pytest.raises(ClusterError, match=message) as caught:
        select_nodes(selection, nodes, requested=4)
    assert "cluster up" in str(caught.value.hint)


@pytest.mark.parametrize("value", [0, -1, 10000, "", "all", "..", "0..", "2..4", "two"])
def test_other_values_are_refused(value: int | str) -> None:
    with pytest.raises(ValueError, match="must be"):
        check_nodes(value)
