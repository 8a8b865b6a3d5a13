"""Decides what `up` and `down` have to do: state and wishes in, steps out. Pure; nothing here calls AWS."""

from dataclasses import dataclass

from provision.config import ProvisionConfig
from provision.errors import ClusterError, ConfigError
from provision.model import (
    MAX_TAG_LENGTH,
    TAG_NAME,
    ClusterState,
    KeyPair,
    LaunchTarget,
    SecurityGroup,
    format_indices,
    resource_name,
)
from provision.steps import (
    AuthorizeIngress,
    CreateKeyPair,
    CreateSecurityGroup,
    DeleteKeyPair,
    DeleteSecurityGroup,
    ForgetFiles,
    ImportKeyPair,
    RevokeIngress,
    RunInstances,
    Step,
    TerminateInstances,
    WaitForRunning,
    WaitForTerminated,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Steps in their order; false when there is nothing to do. cluster and owner, an ARN, go into tags."""

    cluster: str
    steps: tuple[Step, ...]
    owner: str = ""

    def __bool__(self) -> bool:
        return bool(self.steps)


def plan_up(
    *,
    name: str,
    config: ProvisionConfig,
    state: ClusterState,
    target: LaunchTarget,
    local_key: str | None,
) -> Plan:
    """What is missing between `state` and a running cluster of `config.nodes` nodes.

    local_key: the public half of the private key on this machine, None when there is none.
    Raises ConfigError when no nodes are asked for, ClusterError when what is there cannot be completed: it
    belongs to somebody else, has more or other nodes, or its key is lost.
    """
    _refuse_impossible(name=name, config=config, state=state)
    missing = sorted(set(range(config.nodes)) - {node.index for node in state.nodes})
    key_steps = _plan_key_pair(name=name, state=state, local_key=local_key)
    group, group_steps = _plan_security_group(name=name, state=state, target=target)
    launches = tuple(
        RunInstances(
            indices=indices,
            group_id=group.group_id if group else None,
            key_name=resource_name(name),
            volume_size_gib=config.volume_size_gib,
            target=target,
        )
        for indices in _batches(missing)
    )
    settled = not missing and all(
        node.state == "running" and node.address(config.ssh_address) is not None for node in state.nodes
    )
    wait = () if settled else (WaitForRunning(nodes=config.nodes, public_address=target.public_address),)
    return Plan(cluster=name, steps=(*key_steps, *group_steps, *launches, *wait), owner=target.owner)


def plan_down(state: ClusterState, *, local_files: bool = False) -> Plan:
    """Everything of the cluster that is ours, in the order in which EC2 lets go of it; empty when it is gone.

    local_files: whether files of the cluster are on this machine. They go last: until then `up` could go on.
    """
    steps: list[Step] = []
    if state.nodes:
        steps.append(TerminateInstances(nodes=state.nodes))
    ids = (*(node.instance_id for node in state.nodes), *state.ending)
    if ids:
        steps.append(WaitForTerminated(instance_ids=ids))
    steps.extend(DeleteSecurityGroup(group_id=group.group_id) for group in state.security_groups if group.ours)
    if state.key_pair and state.key_pair.ours:
        steps.append(_delete_key_pair(state.key_pair))
    if steps or local_files:
        steps.append(ForgetFiles())
    return Plan(cluster=state.name, steps=tuple(steps))


def _refuse_impossible(*, name: str, config: ProvisionConfig, state: ClusterState) -> None:
    if config.nodes == 0:
        raise ConfigError(
            "[provision] nodes = 0: `up` needs at least 1 node", hint="set nodes, or: cluster up --nodes N"
        )
    for node in state.nodes:
        where = f"{node.name} ({node.instance_id}) of cluster {name}"
        if node.state in {"stopping", "stopped"}:
            raise ClusterError(
                f"{where} is {node.state}: {node.state_reason or 'no reason given'}",
                hint=f"aws ec2 start-instances --instance-ids {node.instance_id}; or end all: cluster down",
            )
        if node.instance_type != config.instance_type:
            raise ClusterError(
                f'{where} is a {node.instance_type}; [provision] instance_type = "{config.instance_type}"',
                hint="a cluster has one type: cluster down, then cluster up",
            )
        if node.index >= config.nodes:
            raise ClusterError(
                f"cluster {name} has {len(state.nodes)} nodes "
                f"({format_indices(n.index for n in state.nodes)}), not the {config.nodes} asked for",
                hint=f"cluster up --nodes {state.nodes[-1].index + 1}, or end all: cluster down",
            )


def _plan_key_pair(*, name: str, state: ClusterState, local_key: str | None) -> tuple[Step, ...]:
    """The private key is here and nowhere else, EC2 has the public half.

    in EC2       here         nodes   steps
    none         none         none    make, import
    none         present      any     import
    ours         the same     any     -
    ours         none         none    delete, make, import
    ours         another      none    delete, import
    any          none         some    refused: nobody can reach these nodes
    ours         another      some    refused: not the key of these nodes
    not ours     any          any     refused
    """
    key_name = resource_name(name)
    key = state.key_pair
    if key is not None and not key.ours:
        raise ClusterError(
            f"a key pair {key_name} is there that this program did not make (no tag {TAG_NAME} = {name})",
            hint="give the cluster another name in cluster.toml, or remove the key pair yourself",
        )
    if state.nodes and (local_key is None or (key is not None and key.public_key != local_key)):
        what = "is not on this machine" if local_key is None else "on this machine is another one"
        raise ClusterError(
            f"cluster {name} has {len(state.nodes)} nodes, which only its private key can reach; it {what}",
            hint="put the key back, or work from the machine that made it; or end all: cluster down",
        )
    if key is not None and key.public_key == local_key:
        return ()
    deletion = (_delete_key_pair(key),) if key is not None else ()
    make = CreateKeyPair(key_name=key_name) if local_key is None else ImportKeyPair(key_name=key_name)
    return (*deletion, make)


def _plan_security_group(
    *, name: str, state: ClusterState, target: LaunchTarget
) -> tuple[SecurityGroup | None, tuple[Step, ...]]:
    """The group that is there already, and what it lacks, has too much, or needs to be made."""
    group = next((group for group in state.security_groups if group.vpc_id == target.vpc_id), None)
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
        create = CreateSecurityGroup(group_name=resource_name(name), vpc_id=target.vpc_id)
        return None, (
            *strays,
            create,
            AuthorizeIngress(group_id=None, ssh_from=target.ssh_from, members=True),
        )
    steps: list[Step] = [*strays]
    ssh_is_open = target.ssh_from in group.ssh_open_to
    if not ssh_is_open or not group.open_to_members:
        steps.append(
            AuthorizeIngress(
                group_id=group.group_id,
                ssh_from=None if ssh_is_open else target.ssh_from,
                members=not group.open_to_members,
            )
        )
    if stale := tuple(network for network in group.ssh_from if network != target.ssh_from):
        steps.append(RevokeIngress(group_id=group.group_id, ssh_from=stale))
    return group, tuple(steps)


def _delete_key_pair(key: KeyPair) -> DeleteKeyPair:
    return DeleteKeyPair(key_name=key.key_name)


def _batches(indices: list[int]) -> tuple[tuple[int, ...], ...]:
    """One batch, unless the indices are so scattered that their list would not fit into a tag."""
    if len(format_indices(indices)) <= MAX_TAG_LENGTH:
        return (tuple(indices),) if indices else ()
    batches: list[tuple[int, ...]] = []
    batch: list[int] = []
    for index in indices:
        if len(format_indices([*batch, index])) > MAX_TAG_LENGTH:
            batches.append(tuple(batch))
            batch = []
        batch.append(index)
    return (*batches, tuple(batch))
