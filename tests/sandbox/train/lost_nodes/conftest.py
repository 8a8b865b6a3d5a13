"""A cluster of spot instances, whose nodes the tests of a file replace."""

from collections.abc import Iterator

import pytest

from project import REPOSITORY, Project, cluster_in, configure


@pytest.fixture(scope="module")
def spot_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A cluster of two spot instances without a framework, which takes less time to replace."""
    text = configure((REPOSITORY / "cluster.toml").read_text(), market="spot", framework="none")
    with cluster_in(tmp_path_factory.mktemp("spot"), text) as made:
        yield made


@pytest.fixture(scope="module")
def with_data(spot_nodes: Project) -> Project:
    """The cluster, with MXNet, and the digits in the bucket that the shipped cluster.toml names."""
    spot_nodes.write(configure((REPOSITORY / "cluster.toml").read_text(), market="spot"))
    spot_nodes.run("up")
    spot_nodes.run("data", "demo", "digits")
    spot_nodes.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")
    return spot_nodes
