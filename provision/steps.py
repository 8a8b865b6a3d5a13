"""What a plan is made of: each step is one thing to do, with all that is needed to do it."""

from dataclasses import dataclass

from provision.model import LaunchOption, Node, Quota, UntrustedInstance, Upload


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateKeyPair:
    """Make a private key on this machine, and import its public half."""

    key_name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportKeyPair:
    """Import the public half of the private key that is on this machine."""

    key_name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteKeyPair:
    """Delete the key pair in EC2."""

    key_name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateSecurityGroup:
    """Make the security group, with EC2's default rules: nothing comes in, everything goes out."""

    group_name: str
    vpc_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AuthorizeIngress:
    """Allow ssh from a network, and (members) everything among the group's members.

    group_id: None for the group that this plan makes. ssh_from: None when that is allowed already.
    """

    group_id: str | None
    ssh_from: str | None
    members: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RevokeIngress:
    """Take back ssh rules that this program made for networks that are no longer asked for."""

    group_id: str
    ssh_from: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteSecurityGroup:
    """Delete the security group, once no network interface is in it."""

    group_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AuthorizeEgress:
    """Allow everything to the group's members as well: EFA wants a rule that names the group.

    group_id: None for the group that this plan makes.
    """

    group_id: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatePlacementGroup:
    """Make the placement group, with the strategy `cluster`."""

    group_name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DeletePlacementGroup:
    """Delete the placement group, once no instance is in it."""

    group_name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateInstanceProfile:
    """Make the nodes' role with its policy, and the instance profile that holds it; what is there is left.

    policy: a policy document, as JSON.
    """

    name: str
    policy: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteInstanceProfile:
    """Delete the instance profile and the role, whatever of them is there.

    policy_names: the role's inline policies, which go first.
    """

    name: str
    has_role: bool
    has_profile: bool
    in_profile: bool
    policy_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchNodes:
    """Launch the nodes with these indices, in one call: all of them or, when there is no other way, `least`.

    least: 0 when the cluster has as many nodes as it must have, and can do without these.
    group_id: None for the group that this plan makes. placement_group: for the options that say so.
    options: tried in this order; capacity_wait_s: for how many seconds to go round them again.
    """

    indices: tuple[int, ...]
    least: int
    group_id: str | None
    key_name: str
    volume_size_gib: int
    public_address: bool
    options: tuple[LaunchOption, ...]
    capacity_wait_s: int = 0
    placement_group: str | None = None
    instance_profile: str | None = None
    quotas: tuple[Quota, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitForRunning:
    """Wait until the nodes 0 to nodes-1 run and have the address that they are to be reached at.

    Without those that LaunchNodes, in the same plan, did without. least: how many of them are good enough when
    others end while starting; None: all.
    """

    nodes: int
    public_address: bool
    least: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StartInstances:
    """Start stopped nodes, and wait until they run; those that are starting already are only waited for.

    public_address: they are to have one before they are taken as running.
    """

    nodes: tuple[Node, ...]
    public_address: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class StopInstances:
    """Stop nodes, and note in their tags how long they have run."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitForStopped:
    """Wait until instances have stopped."""

    instance_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelSpotRequests:
    """Cancel spot requests that could still lead to an instance."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AbortUploads:
    """Abort uploads to S3 that were interrupted, and whose parts are paid for."""

    uploads: tuple[Upload, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TerminateInstances:
    """Terminate nodes. untrusted: other instances that carry the cluster's tag, which end with the whole cluster."""

    nodes: tuple[Node, ...]
    untrusted: tuple[UntrustedInstance, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitForTerminated:
    """Wait until instances are gone."""

    instance_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteNetworkInterfaces:
    """Delete network interfaces of the cluster that no instance holds any more."""

    interface_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteVolumes:
    """Delete volumes of the cluster that no instance holds any more."""

    volume_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForgetFiles:
    """Remove the cluster's private key, known hosts and journal from this machine."""


Step = (
    CreateKeyPair
    | ImportKeyPair
    | DeleteKeyPair
    | CreateSecurityGroup
    | AuthorizeIngress
    | AuthorizeEgress
    | RevokeIngress
    | DeleteSecurityGroup
    | CreatePlacementGroup
    | DeletePlacementGroup
    | CreateInstanceProfile
    | DeleteInstanceProfile
    | LaunchNodes
    | WaitForRunning
    | StartInstances
    | StopInstances
    | WaitForStopped
    | TerminateInstances
    | WaitForTerminated
    | CancelSpotRequests
    | AbortUploads
    | DeleteNetworkInterfaces
    | DeleteVolumes
    | ForgetFiles
)
