"""Decides what `up` and `resize` have to do: state and wishes in, steps out. Pure; nothing here calls AWS."""

from dataclasses import dataclass, replace

from provision.config import ProvisionConfig, all_types
from provision.errors import ClusterError, ConfigError, NotFoundError
from provision.model import (
    MAX_TAG_LENGTH,
    TAG_NAME,
    Caller,
    ClusterState,
    Preflight,
    UntrustedInstance,
    format_indices,
    profile_name,
    resource_name,
)
from provision.plan_access import plan_security_group
from provision.steps import (
    CreateKeyPair,
    CreatePlacementGroup,
    DeleteKeyPair,
    ImportKeyPair,
    LaunchNodes,
    Step,
    TerminateInstances,
    WaitForRunning,
    WaitForTerminated,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Steps in their order; false when there is nothing to do.

    cluster and owner, an ARN, go into tags. caller, preflight and nodes (how many the cluster is to have) are what
    the plan was made from, for those who read it; preflight is None when nothing is launched. left_alone: instances
    with the cluster's tag that the plan does not touch, because they are not trusted.
    """

    cluster: str
    steps: tuple[Step, ...]
    owner: str = ""
    caller: Caller | None = None
    preflight: Preflight | None = None
    nodes: int = 0
    left_alone: tuple[UntrustedInstance, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.steps)


def missing_nodes(config: ProvisionConfig, state: ClusterState) -> tuple[int, ...]:
    """The indices of the nodes that are to be launched."""
    return tuple(sorted(set(range(config.nodes)) - {node.index for node in state.nodes}))


def least_nodes(config: ProvisionConfig, state: ClusterState) -> int:
    """How many of the missing nodes there must be, at least; 0 when the cluster can do without them."""
    needed = config.nodes if config.min_nodes == "all" else min(config.min_nodes, config.nodes)
    staying = sum(node.index < config.nodes for node in state.nodes)
    return max(needed - staying, 0)


def plan_up(
    *,
    name: str,
    config: ProvisionConfig,
    state: ClusterState,
    caller: Caller,
    preflight: Preflight | None,
    local_key: str | None,
    profile_steps: tuple[Step, ...] = (),
) -> Plan:
    """What is missing between `state` and a running cluster of `config.nodes` nodes.

    preflight: None when no node is missing. local_key: the public half of the private key on this machine, None when
    there is none. profile_steps: what makes the instance profile.
    Raises ConfigError when no nodes are asked for, ClusterError when what is there cannot be completed: it
    belongs to somebody else, has more or other nodes, or its key is lost.
    """
    refuse_impossible(name=name, config=config, state=state)
    missing = missing_nodes(config, state)
    key_steps = _plan_key_pair(name=name, state=state, local_key=local_key)
    group, group_steps = plan_security_group(
        name=name, state=state, vpc_id=_vpc_id(state, preflight), ssh_from=caller.ssh_from, efa=config.efa
    )
    placement_group, placement_steps = _plan_placement_group(name=name, state=state, preflight=preflight)
    launches: tuple[LaunchNodes, ...] = ()
    if preflight is not None:
        batches = _batches(list(missing))
        least = least_nodes(config, state) if len(batches) == 1 else len(missing)
        launches = tuple(
            LaunchNodes(
                indices=indices,
                least=min(least, len(indices)),
                group_id=group.group_id if group else None,
                key_name=resource_name(name),
                volume_size_gib=config.volume_size_gib,
                public_address=preflight.public_address,
                options=preflight.options,
                capacity_wait_s=config.capacity_wait_s,
                placement_group=placement_group,
                instance_profile=_instance_profile(name, config),
                quotas=preflight.quotas,
            )
            for indices in batches
        )
    settled = not missing and all(
        node.state == "running" and node.address(config.ssh_address) is not None for node in state.nodes
    )
    waiting = WaitForRunning(
        nodes=config.nodes,
        public_address=config.ssh_address == "public",
        least=None if config.min_nodes == "all" else min(config.min_nodes, config.nodes),
    )
    wait = () if settled else (waiting,)
    return Plan(
        cluster=name,
        steps=(*key_steps, *group_steps, *placement_steps, *profile_steps, *launches, *wait),
        owner=caller.owner,
        caller=caller,
        preflight=preflight,
        nodes=config.nodes,
        left_alone=state.untrusted,
    )


def plan_resize(
    *,
    name: str,
    config: ProvisionConfig,
    state: ClusterState,
    caller: Caller,
    preflight: Preflight | None,
    local_key: str | None,
    profile_steps: tuple[Step, ...] = (),
) -> Plan:
    """What makes the cluster one of `config.nodes` nodes, which may be 0: those with the highest indices end.

    What is left of it at 0 costs nothing: key pair, security group and placement group. Arguments as for plan_up.
    Raises NotFoundError when there is no cluster, and as plan_up does.
    """
    if not state.exists:
        raise NotFoundError(f"there is no cluster {name} to resize", hint=f"cluster up --nodes {max(config.nodes, 1)}")
    leaving = tuple(node for node in state.nodes if node.index >= config.nodes)
    ending: tuple[Step, ...] = ()
    if leaving:
        ids = tuple(node.instance_id for node in leaving)
        ending = (TerminateInstances(nodes=leaving), WaitForTerminated(instance_ids=ids))
    if config.nodes == 0:
        return Plan(cluster=name, steps=ending, owner=caller.owner, caller=caller, left_alone=state.untrusted)
    plan = plan_up(
        name=name,
        config=config,
        state=without_leaving(config, state),
        caller=caller,
        preflight=preflight,
        local_key=local_key,
        profile_steps=profile_steps,
    )
    return replace(plan, steps=(*ending, *plan.steps))


def without_leaving(config: ProvisionConfig, state: ClusterState) -> ClusterState:
    """The cluster without the nodes that a resize ends."""
    return replace(state, nodes=tuple(node for node in state.nodes if node.index < config.nodes))


def refuse_impossible(*, name: str, config: ProvisionConfig, state: ClusterState) -> None:
    """Raises ConfigError, ClusterError when no launch can make the cluster what it is to be."""
    if config.nodes == 0:
        raise ConfigError(
            "[provision] nodes = 0: `up` needs at least 1 node", hint="set nodes, or: cluster up --nodes N"
        )
    for node in state.nodes:
        where = f"{node.name} ({node.instance_id}) of cluster {name}"
        if node.state in {"stopping", "stopped"}:
            raise ClusterError(
                f"{where} is {node.state}: {node.state_reason or 'no reason given'}",
                hint="cluster start; or end all: cluster down",
            )
        if node.instance_type not in all_types(config):
            raise ClusterError(
                f'{where} is a {node.instance_type}; [provision] instance_type = "{config.instance_type}"',
                hint="a cluster has one type: cluster down, then cluster up",
            )
        if config.subnet_id not in {"auto", node.subnet_id}:
            raise ClusterError(
                f'{where} is in {node.subnet_id}; [provision] subnet_id = "{config.subnet_id}"',
                hint="a cluster is in one subnet: cluster down, then cluster up",
            )
        profile = _instance_profile(name, config)
        if profile is not None and (node.profile_arn or "").rpartition("/")[2] != profile:
            raise ClusterError(
                f"{where} has {'another' if node.profile_arn else 'no'} instance profile; [provision] "
                f'instance_profile = "{config.instance_profile}" is {profile}',
                hint="nodes get it when they are launched: cluster resize 0, then cluster up",
            )
        if node.index >= config.nodes:
            raise ClusterError(
                f"cluster {name} has {len(state.nodes)} nodes "
                f"({format_indices(n.index for n in state.nodes)}), not the {config.nodes} asked for",
                hint=f"cluster resize {config.nodes}, or cluster up --nodes {state.nodes[-1].index + 1}",
            )


def _vpc_id(state: ClusterState, preflight: Preflight | None) -> str:
    """The VPC that the nodes are in, or will be: all ways to launch are in the same one."""
    if preflight is not None:
        return preflight.options[0].vpc_id
    return next((node.vpc_id for node in state.nodes if node.vpc_id), "")


def _instance_profile(name: str, config: ProvisionConfig) -> str | None:
    if config.instance_profile == "auto":
        return profile_name(name, region=config.region)
    return None if config.instance_profile == "none" else config.instance_profile


def _plan_placement_group(
    *, name: str, state: ClusterState, preflight: Preflight | None
) -> tuple[str | None, tuple[Step, ...]]:
    """The placement group's name where a launch uses it, and what makes it."""
    if preflight is None or not any(option.placement for option in preflight.options):
        return None, ()
    group_name = resource_name(name)
    if state.placement_group is None:
        return group_name, (CreatePlacementGroup(group_name=group_name),)
    if not state.placement_group.ours:
        raise ClusterError(
            f"a placement group {group_name} is there that this program did not make (no tag {TAG_NAME} = {name})",
            hint="give the cluster another name in cluster.toml, or remove the placement group yourself",
        )
    return group_name, ()


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

    Untrusted instances that were launched with a key pair of this name count as nodes here: whoever has the cluster's
    private key may work with them, and another key must not be put in its place.
    """
    key_name = resource_name(name)
    key = state.key_pair
    if key is not None and not key.ours:
        raise ClusterError(
            f"a key pair {key_name} is there that this program did not make (no tag {TAG_NAME} = {name})",
            hint="give the cluster another name in cluster.toml, or remove the key pair yourself",
        )
    using = (*state.nodes, *(instance for instance in state.untrusted if instance.key_name == key_name))
    if using and (local_key is None or (key is not None and key.public_key != local_key)):
        what = "is not on this machine" if local_key is None else "on this machine is another one"
        raise ClusterError(
            f"cluster {name} has {len(using)} nodes, which only its private key can reach; it {what}",
            hint="put the key back, or work from the machine that made it; or end all: cluster down",
        )
    if key is not None and key.public_key == local_key:
        return ()
    deletion = (DeleteKeyPair(key_name=key.key_name),) if key is not None else ()
    make = CreateKeyPair(key_name=key_name) if local_key is None else ImportKeyPair(key_name=key_name)
    return (*deletion, make)


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
