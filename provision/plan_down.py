"""Decides what `down` has to do. Pure; nothing here calls AWS."""

from provision.model import ClusterState, InstanceProfile, SpotRequest, Upload
from provision.plan import Plan
from provision.steps import (
    AbortUploads,
    CancelSpotRequests,
    DeleteInstanceProfile,
    DeleteKeyPair,
    DeleteNetworkInterfaces,
    DeletePlacementGroup,
    DeleteSecurityGroup,
    DeleteVolumes,
    ForgetFiles,
    Step,
    TerminateInstances,
    WaitForTerminated,
)
from provision.strays import Strays
from provision.uploads import is_dead


def plan_down(
    state: ClusterState,
    *,
    profile: InstanceProfile | None = None,
    uploads: tuple[Upload, ...] = (),
    strays: Strays = Strays(),  # noqa: B008 - frozen: nothing a call could leave in it
    local_files: bool = False,
) -> Plan:
    """Everything that carries the cluster's tag, in the order in which EC2 lets go of it; empty when it is gone.

    By the tag, so that every machine can delete the cluster: instances that are not trusted end, too.

    Spot requests that could still launch go before the instances, or one could come behind the back of this plan.
    Groups and profile go when no instance is in them. uploads: of those the dead ones are aborted, the others are
    left alone. local_files: whether files of the cluster are on this machine; they go last: until then `up` could
    go on.
    """
    steps: list[Step] = []
    if stale := tuple(request.request_id for request in state.spot_requests if _is_stale(request, state)):
        steps.append(CancelSpotRequests(request_ids=stale))
    live = (*state.nodes, *state.untrusted)
    if live:
        steps.append(TerminateInstances(nodes=state.nodes, untrusted=state.untrusted))
    if ids := (*(instance.instance_id for instance in live), *state.ending):
        steps.append(WaitForTerminated(instance_ids=ids))
    steps.extend(_plan_network(state, strays))
    if profile is not None and profile.ours:
        steps.append(
            DeleteInstanceProfile(
                name=profile.name,
                has_role=profile.has_role,
                has_profile=profile.has_profile,
                in_profile=profile.in_profile,
                policy_names=profile.policy_names,
            )
        )
    if strays.volume_ids:
        steps.append(DeleteVolumes(volume_ids=strays.volume_ids))
    if dead := tuple(upload for upload in uploads if is_dead(upload)):
        steps.append(AbortUploads(uploads=dead))
    if steps or local_files:
        steps.append(ForgetFiles())
    return Plan(cluster=state.name, steps=tuple(steps))


def _plan_network(state: ClusterState, strays: Strays) -> list[Step]:
    """What instances are in: interfaces first, which would hold the security group."""
    steps: list[Step] = []
    if strays.interface_ids:
        steps.append(DeleteNetworkInterfaces(interface_ids=strays.interface_ids))
    steps.extend(DeleteSecurityGroup(group_id=group.group_id) for group in state.security_groups if group.ours)
    if state.placement_group is not None and state.placement_group.ours:
        steps.append(DeletePlacementGroup(group_name=state.placement_group.group_name))
    if state.key_pair is not None and state.key_pair.ours:
        steps.append(DeleteKeyPair(key_name=state.key_pair.key_name))
    return steps


def _is_stale(request: SpotRequest, state: ClusterState) -> bool:
    """It can still lead to an instance. One that has its instance ends with that: `up` makes one-time requests."""
    known = {*(instance.instance_id for instance in (*state.nodes, *state.untrusted)), *state.ending}
    return request.state != "active" or request.instance_id not in known
