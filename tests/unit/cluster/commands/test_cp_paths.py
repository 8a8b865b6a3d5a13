"""`cluster cp`: which of its arguments are paths on a node."""

from pathlib import Path

import pytest

from bootstrap.ssh.host import Host, render_scp_command
from cluster.commands.ssh import read_paths
from foundation.errors import UsageError

HOST = Host(name="node-0", instance_id="i-1", address="198.18.0.2", private_ip="", user="ubuntu", is_head=True)


@pytest.mark.parametrize(
    ("sources", "target", "said"),
    [
        (["a"], "b", "neither SOURCE nor TARGET"),
        (["node-0:a"], "node-1:b", "from this machine to one node"),
        (["node-0:a", "b"], ".", "from this machine to one node"),
    ],
)
def test_what_cannot_be_copied(sources: list[str], target: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_paths(sources, target)


def test_a_local_name_with_a_colon_is_not_a_host() -> None:
    words = render_scp_command(HOST, ["a:b", str(Path("/c:d"))], "x", to_node=True, options={})
    assert words[-3:] == ("./a:b", "/c:d", "ubuntu@198.18.0.2:x")
    assert render_scp_command(HOST, ["x y"], "a:b", to_node=False, options={})[-2:] == (
        "ubuntu@198.18.0.2:x y",
        "./a:b",
    )
