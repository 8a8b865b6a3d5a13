"""`allow`: from which network the nodes accept ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foundation.errors import NotFoundError
from provision.model import ClusterState, SecurityGroup, resource_name
from provision.plan import Plan
from provision.preflight.caller import describe_caller, describe_own
from provision.resources.security_group import plan_ssh_rules

if TYPE_CHECKING:
    from provision.aws.clients import Clients
    from provision.config import ProvisionConfig
    from provision.files import ClusterFiles


def prepare_allow(
    clients: Clients, *, name: str, config: ProvisionConfig, files: ClusterFiles
) -> tuple[Plan, SecurityGroup, str]:
    """Plans what `allow` will do. Only reads.

    Returns the plan, the current security group and the network to allow. Raises the errors of plan_allow, and
    AwsError.
    """
    state = describe_own(clients, name=name, files=files)
    group = _find_group(state)
    ssh_from = describe_caller(clients, config).ssh_from
    return plan_allow(state, ssh_from=ssh_from), group, ssh_from


def plan_allow(state: ClusterState, *, ssh_from: str) -> Plan:
    """Plans to allow ssh from the network `ssh_from` instead of the previous one. Keeps rules that were made by hand.

    Raises NotFoundError when the cluster has no security group.
    """
    return Plan(cluster=state.name, steps=plan_ssh_rules(_find_group(state), ssh_from))


def _find_group(state: ClusterState) -> SecurityGroup:
    """Returns the nodes' group; without nodes, any group of the cluster. Raises NotFoundError."""
    networks = {node.vpc_id for node in state.nodes if node.vpc_id}
    ours = [group for group in state.security_groups if group.ours]
    group = next((group for group in ours if not networks or group.vpc_id in networks), None)
    if group is None:
        what = f"the security group {resource_name(state.name)} is missing" if state.nodes else "no such cluster"
        raise NotFoundError(
            f"cluster {state.name}: {what}",
            hint="cluster down, then cluster up" if state.nodes else "cluster up",
        )
    return group
