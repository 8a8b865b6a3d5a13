"""The calls that are rehearsed before anything is made: EC2's dry runs, which have no effect.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/CommonParameters.html has DryRun.
What `down` will delete is not there yet: its dry runs name stand-ins, which cannot exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from provision.access import ingress_permissions
from provision.config import ProvisionConfig
from provision.launch import run_instances_request
from provision.model import Caller, ClusterState, LaunchOption, resource_name, tags
from provision.steps import AuthorizeIngress, LaunchNodes

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

STAND_IN_INSTANCE = "i-00000000000000000"
STAND_IN_GROUP = "sg-00000000000000000"
STAND_IN_SPOT_REQUEST = "sir-00000000"
STAND_IN_NAME = "cluster-0"
"""Of a key pair or placement group: no cluster's name begins with a digit."""

_PUBLIC_KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
"""Well formed, and all zeros: the cluster's own key may not be made yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """A call that is only rehearsed.

    call: takes the request. stands_in: it names what cannot exist. resource: kind and name behind the ARN's account,
    where the action has one alone and IAM can so be asked about it. also: actions that are allowed when this one is.
    """

    action: str
    call: Callable[..., object]
    request: Mapping[str, Any]
    stands_in: bool = False
    resource: str | None = None
    also: tuple[str, ...] = ()


def rehearse_launch(
    config: ProvisionConfig, state: ClusterState, name: str, missing: tuple[int, ...], options: Sequence[LaunchOption]
) -> LaunchNodes:
    """The launch without what is not there yet: EC2 would refuse that instead of telling about permissions."""
    group, key, placement = state.security_group, state.key_pair, state.placement_group
    usable = group is not None and group.vpc_id == options[0].vpc_id and key is not None and key.ours
    return LaunchNodes(
        indices=missing,
        least=len(missing),
        group_id=group.group_id if group is not None and usable else None,
        key_name=resource_name(name),
        volume_size_gib=config.volume_size_gib,
        public_address=config.ssh_address == "public",
        options=tuple(options),
        placement_group=placement.group_name if placement is not None and placement.ours else None,
        instance_profile=None if config.instance_profile in {"none", "auto"} else config.instance_profile,
    )


def list_dry_runs(
    ec2: EC2Client, *, config: ProvisionConfig, state: ClusterState, caller: Caller, name: str, launch: LaunchNodes
) -> Iterator[DryRun]:
    """All calls that are rehearsed, in the order in which `up` and `down` make them."""
    yield from _rehearse_access(ec2, config=config, state=state, caller=caller, name=name, launch=launch)
    if any(option.placement for option in launch.options):
        yield from _rehearse_placement(ec2, state=state, caller=caller, name=name)
    option = launch.options[0]
    request = run_instances_request(
        replace(launch, instance_profile=None),
        option,
        least=launch.least,
        name=name,
        owner=caller.owner,
        group_id=launch.group_id,
    )
    run = partial(DryRun, action="ec2:RunInstances", call=ec2.run_instances)
    yield run(request=request, also=("ec2:CreateTags",))  # the request tags what it makes
    if launch.instance_profile is not None:
        profile = {"IamInstanceProfile": {"Name": launch.instance_profile}}
        yield run(request={**request, **profile}, also=("iam:PassRole",))
    instance_id = next((node.instance_id for node in state.nodes), STAND_IN_INSTANCE)
    of_instance = partial(DryRun, stands_in=not state.nodes, resource="instance/*")
    # The console has the host keys: without it nodes are paid for that nobody may reach.
    console = {"InstanceId": instance_id}
    yield of_instance(action="ec2:GetConsoleOutput", call=ec2.get_console_output, request=console)
    ending = {"InstanceIds": [instance_id]}
    yield of_instance(action="ec2:TerminateInstances", call=ec2.terminate_instances, request=ending)
    if any(option.market == "spot" for option in launch.options):
        yield DryRun(
            action="ec2:CancelSpotInstanceRequests",
            call=ec2.cancel_spot_instance_requests,
            request={"SpotInstanceRequestIds": [STAND_IN_SPOT_REQUEST]},
            stands_in=True,
            resource="spot-instances-request/*",
        )


def _rehearse_access(
    ec2: EC2Client, *, config: ProvisionConfig, state: ClusterState, caller: Caller, name: str, launch: LaunchNodes
) -> Iterator[DryRun]:
    key, group = state.key_pair, state.security_group
    if key is None:
        yield DryRun(
            action="ec2:ImportKeyPair",
            call=ec2.import_key_pair,
            request={
                "KeyName": resource_name(name),
                "PublicKeyMaterial": _PUBLIC_KEY,
                "TagSpecifications": _tagged("key-pair", name, caller),
            },
        )
    if group is None:
        yield DryRun(
            action="ec2:CreateSecurityGroup",
            call=ec2.create_security_group,
            request={
                "GroupName": resource_name(name),
                "Description": f"Nodes of the cluster {name}",
                "VpcId": launch.options[0].vpc_id,
                "TagSpecifications": _tagged("security-group", name, caller),
            },
        )
    group_id = group.group_id if group is not None else STAND_IN_GROUP
    of_group = partial(DryRun, stands_in=group is None, resource="security-group/*")
    ssh = AuthorizeIngress(group_id=group_id, ssh_from=caller.ssh_from, members=True)
    rules = ingress_permissions(ssh, group_id=group_id)
    yield of_group(
        action="ec2:AuthorizeSecurityGroupIngress",
        call=ec2.authorize_security_group_ingress,
        request={"GroupId": group_id, "IpPermissions": rules},
    )
    if config.efa:
        yield of_group(
            action="ec2:AuthorizeSecurityGroupEgress",
            call=ec2.authorize_security_group_egress,
            request={"GroupId": group_id, "IpPermissions": rules[-1:]},
        )
    yield of_group(action="ec2:DeleteSecurityGroup", call=ec2.delete_security_group, request={"GroupId": group_id})
    yield DryRun(
        action="ec2:DeleteKeyPair",
        call=ec2.delete_key_pair,
        request={"KeyName": STAND_IN_NAME if key is None else key.key_name},
        stands_in=key is None,
        resource=f"key-pair/{resource_name(name)}",
    )


def _rehearse_placement(ec2: EC2Client, *, state: ClusterState, caller: Caller, name: str) -> Iterator[DryRun]:
    group = state.placement_group
    if group is None:
        yield DryRun(
            action="ec2:CreatePlacementGroup",
            call=ec2.create_placement_group,
            request={
                "GroupName": resource_name(name),
                "Strategy": "cluster",
                "TagSpecifications": _tagged("placement-group", name, caller),
            },
        )
    yield DryRun(
        action="ec2:DeletePlacementGroup",
        call=ec2.delete_placement_group,
        request={"GroupName": STAND_IN_NAME if group is None else group.group_name},
        stands_in=group is None,
        resource=f"placement-group/{resource_name(name)}",
    )


def _tagged(kind: str, name: str, caller: Caller) -> list[dict[str, Any]]:
    named = tags(name=name, owner=caller.owner, role=kind)
    return [{"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in named.items()]}]
