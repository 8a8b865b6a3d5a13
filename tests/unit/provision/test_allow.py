"""allow: the messages. test_plan.py has the plans of rules, resources/test_power.py one that is applied."""

import pytest

from cluster.commands.adopt import render_allowed
from foundation.errors import NotFoundError
from provision.allow import plan_allow
from provision.model import Node, SecurityGroup
from provision_world import CALLER_NETWORK, make_node, make_state

OTHER = "198.51.100.1/32"
BY_HAND = "also from 192.0.2.0/24, by rules that were made by hand"
RUNNING = make_node(0)


@pytest.mark.parametrize(
    ("nodes", "groups", "said"),
    [((), (), "no such cluster"), ((RUNNING,), (), "the security group cluster-demo is missing")],
)
def test_allow_needs_a_security_group(nodes: tuple[Node, ...], groups: tuple[SecurityGroup, ...], said: str) -> None:
    with pytest.raises(NotFoundError, match=said):
        plan_allow(make_state(*nodes, security_groups=groups), ssh_from=OTHER)


@pytest.mark.parametrize(
    ("before", "open_to", "said"),
    [
        ([OTHER], [OTHER], f"ssh is allowed from {CALLER_NETWORK}; it was from {OTHER}"),
        ([CALLER_NETWORK], [CALLER_NETWORK], f"ssh is allowed from {CALLER_NETWORK}, as it was"),
        ([OTHER], [OTHER, "192.0.2.0/24"], f"ssh is allowed from {CALLER_NETWORK}; it was from {OTHER}; {BY_HAND}"),
    ],
)
def test_allow_reports_the_networks_before_and_after(before: list[str], open_to: list[str], said: str) -> None:
    assert render_allowed(before, open_to, ssh_from=CALLER_NETWORK) == said
