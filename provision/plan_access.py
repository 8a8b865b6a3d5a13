"""Decides what the security group lacks or has too much. Pure; `up`, `start` and `allow` share it."""

from provision.errors import ClusterError
from provision.model import TAG_NAME, ClusterState, SecurityGroup, resource_name
from provision.steps import (
    AuthorizeEgress,
    AuthorizeIngress,
    CreateSecurityGroup,
    DeleteSecurityGroup,
    RevokeIngress,
    Step,
)


def plan_security_group(
    *, name: str, state: ClusterState, vpc_id: str, ssh_from: str, efa: bool = False
) -> tuple[SecurityGroup | None, tuple[Step, ...]]:
    """The cluster's group in the VPC, None while there is none; and what is to be made, added or taken away.

    ssh_from: the one network that may reach the nodes by ssh. efa: the nodes have Elastic Fabric Adapters.
    Raises ClusterError when a group of that name is there that this program did not make.
    """
    group = next((group for group in state.security_groups if group.vpc_id == vpc_id), None)
    if group is not None and not group.ours:
        raise ClusterError(
            f"a security group {resource_name(name)} ({group.group_id}) is there that this program did not "
            f"make (no tag {TAG_NAME} = {name})",
            hint="give the cluster another name in cluster.toml, or remove the group yourself",
        )
    strays = tuple(
        DeleteSecurityGroup(group_id=other.group_id)
        for other in state.security_groups
        if other.ours and other is not group  # an interrupted `up` into another VPC made it
    )
    if group is None:
        create = CreateSecurityGroup(group_name=resource_name(name), vpc_id=vpc_id)
        ingress = AuthorizeIngress(group_id=None, ssh_from=ssh_from, members=True)
        egress = (AuthorizeEgress(group_id=None),) if efa else ()
        return None, (*strays, create, ingress, *egress)
    egress = (AuthorizeEgress(group_id=group.group_id),) if efa and not group.egress_to_members else ()
    return group, (*strays, *plan_ssh_rules(group, ssh_from), *egress)


def plan_ssh_rules(group: SecurityGroup, ssh_from: str) -> tuple[Step, ...]:
    """What makes `ssh_from` the one network that this program lets in; nothing when it is.

    Also puts back the rule that lets the members reach each other, if it is gone. Rules made by hand stay.
    The new rule comes before the old one goes: a kill in between leaves the nodes within reach.
    """
    steps: list[Step] = []
    ssh_is_open = ssh_from in group.ssh_open_to
    if not ssh_is_open or not group.open_to_members:
        steps.append(
            AuthorizeIngress(
                group_id=group.group_id,
                ssh_from=None if ssh_is_open else ssh_from,
                members=not group.open_to_members,
            )
        )
    if stale := tuple(network for network in group.ssh_from if network != ssh_from):
        steps.append(RevokeIngress(group_id=group.group_id, ssh_from=stale))
    return tuple(steps)
