"""`cluster sandbox`: what its words mean."""

import pytest

from cluster.commands.sandbox import name_instances
from foundation.errors import NotFoundError

IDS = {"node-0": "i-0", "node-1": "i-1"}


def test_faults_take_the_names_of_nodes() -> None:
    assert name_instances(("instance=node-1", "after_s=3"), IDS) == ("instance=i-1", "after_s=3")
    assert name_instances(("a=node-0", "b=i-9", "zone=node-0"), IDS) == ("a=i-0", "b=i-9", "zone=node-0")
    with pytest.raises(NotFoundError, match="there is no node-7"):
        name_instances(("instance=node-7",), IDS)
