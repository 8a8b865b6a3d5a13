"""What a plan is made of: each step is one thing to do, with all that is needed to do it."""

from dataclasses import dataclass

from provision.model import LaunchTarget, Node


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
class RunInstances:
    """Launch the nodes with these indices, in one call: all of them or none."""

    indices: tuple[int, ...]
    group_id: str | None
    key_name: str
    volume_size_gib: int
    target: LaunchTarget


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitForRunning:
    """Wait until the nodes 0 to nodes-1 run and have the address that they are to be reached at."""

    nodes: int
    public_address: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TerminateInstances:
    """Terminate nodes."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitForTerminated:
    """Wait until instances are gone."""

    instance_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForgetFiles:
    """Remove the cluster's private key, known hosts and journal from this machine."""


Step = (
    CreateKeyPair
    | ImportKeyPair
    | DeleteKeyPair
    | CreateSecurityGroup
    | AuthorizeIngress
    | RevokeIngress
    | DeleteSecurityGroup
    | RunInstances
    | WaitForRunning
    | TerminateInstances
    | WaitForTerminated
    | ForgetFiles
)
