"""allow: the plan for each security group, and the messages."""

import pytest

from cluster.commands.adopt import render_allowed
from foundation.errors import NotFoundError
from provision.allow import plan_allow
from provision.model import Node, SecurityGroup
from provision.plan import Step
from provision.resources.security_group import AuthorizeIngress, RevokeIngress
from provision_world import CALLER_NETWORK, make_group, make_node, make_state

OTHER = "198.51.100.1/32"
BY_HAND = "also from 192.0.2.0/24, by rules that were made by hand"
RUNNING = make_node(0)


@pytest.mark.parametrize(
    ("group", "wanted"),
    [
        (make_group(), ()),
        (
            make_group(ssh_from=(OTHER,), ssh_open_to=(OTHER,)),
            (
                AuthorizeIngress(group_id="sg-1", ssh_from=CALLER_NETWORK, members=False),
                RevokeIngress(group_id="sg-1", ssh_from=(OTHER,)),
            ),
        ),
        (
            make_group(ssh_from=(OTHER, CALLER_NETWORK), ssh_open_to=(OTHER, CALLER_NETWORK)),
            (RevokeIngress(group_id="sg-1", ssh_from=(OTHER,)),),
        ),
        # Somebody allowed the same network by hand: nothing to add.
        (
            make_group(ssh_from=(), ssh_open_to=("192.0.2.0/24",)),
            (AuthorizeIngress(group_id="sg-1", ssh_from=CALLER_NETWORK, members=False),),
        ),
    ],
)
def test_allow(group: SecurityGroup, wanted: tuple[Step, ...]) -> None:
    assert plan_allow(make_state(RUNNING, security_groups=(group,)), ssh_from=CALLER_NETWORK).steps == wanted


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
