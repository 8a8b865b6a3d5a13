"""A cluster of spot instances, whose nodes the tests of a file replace."""

from collections.abc import Iterator

import pytest

from job_steps import ec2_of
from project import REPOSITORY, Project, cluster_in, configure
from spot_trainings import read_digests, training


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


@pytest.fixture(scope="module")
def uninterrupted(with_data: Project) -> dict[str, str]:
    """The digests of a training without interruptions."""
    with_data.run("train", *training("s3://cluster-demo/models/whole/m"))
    with pytest.MonkeyPatch.context() as patch:
        ec2_of(with_data, patch)
        return read_digests("models/whole/m")
