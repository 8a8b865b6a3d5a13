"""`up`, `resize` and the replacement of nodes: describe the cluster, plan what is missing, apply the plan."""

import time
from collections.abc import Callable, Collection, Mapping

from msgspec.structs import replace

from foundation.durations import render_time
from foundation.errors import CapacityError, ClusterError, ConfigError, NoCapacityError, NotFoundError, StalePlanError
from foundation.progress import Event, Report, silent
from foundation.thread_pool import bounded_pool
from provision.apply import apply
from provision.aws.clients import Clients
from provision.aws.role_policy import render_role_policy
from provision.config import ProvisionConfig, all_types
from provision.describe import describe_cluster
from provision.files import ClusterFiles
from provision.lease.arm import SetLease, plan_repair
from provision.lease.terms import Lease, find_end
from provision.model import ClusterState, Node, Preflight, format_indices
from provision.plan import Plan, Request, Step, World
from provision.preflight.caller import describe_caller, describe_own
from provision.preflight.places import describe_preflight
from provision.resources.instance_profile import find_profile_name
from provision.resources.instances import TerminateInstances, WaitForEnding, WaitForInstances, WaitForTerminated
from provision.resources.launch import MORE_CHOICES
from provision.resources.launch_recovery import wait_for_interrupted_launches
from provision.resources.placement_group import PLACEMENT_GROUP
from provision.resources.table import HEAD_KINDS, KINDS

Replan = Callable[[frozenset[str]], Plan]
"""Plans again, without the places that have these labels, since they had no capacity."""

MAX_PLANS = 12
"""The most plans that one `up` makes, if nodes end while starting or others change the cluster."""


def prepare_up(clients: Clients, *, request: Request, files: ClusterFiles, avoid: frozenset[str] = frozenset()) -> Plan:
    """Plans what `up` will do. Only reads. The plan is empty when the cluster is complete and runs.

    avoid: labels of places not to try. Raises ConfigError, AwsError, ClusterError: see plan_up and describe_preflight.
    """
    refuse_no_nodes(request.config)
    state = describe_cluster(clients.ec2, name=request.name, known=files.known_instances())
    return _prepare(clients, request, state, files=files, avoid=avoid)


def prepare_resize(
    clients: Clients,
    *,
    request: Request,
    files: ClusterFiles,
    avoid: frozenset[str] = frozenset(),
    report: Report = silent,
) -> Plan:
    """Plans what `resize` to `request.config.nodes` will do. Only reads.

    The plan is empty when the cluster has that size. May wait after an interrupted launch of nodes that the resize
    would end: see wait_for_interrupted_launches. Raises NotFoundError when there is no cluster, and the errors of
    prepare_up.
    """
    name, config = request.name, request.config
    if any(index >= config.nodes for launch in files.launches() for index in launch.indices):
        wait_for_interrupted_launches(clients.ec2, name=name, files=files, report=report)
    state = describe_own(clients, name=name, files=files)
    if not state.exists:
        raise NotFoundError(f"no cluster {name} to resize", hint=f"cluster up --nodes {max(config.nodes, 1)}")
    leaving = tuple(node for node in state.nodes if node.index >= config.nodes)
    return _prepare(clients, request, state, files=files, avoid=avoid, leaving=leaving)


def prepare_replacement(
    clients: Clients,
    *,
    request: Request,
    files: ClusterFiles,
    lost: Mapping[int, str],
    needed: Collection[int] = (),
    avoid: frozenset[str] = frozenset(),
) -> Plan:
    """Plans the replacement of the nodes that a job has lost. Only reads. The plan is empty when replacements run.

    lost: index -> id of the instance that was the node. needed: the indices of the job's nodes.

        the node is    its instance         so it is
        lost           live                 terminated, and launched again
        any            ended                launched again
        needed         stopping, stopped    terminated, and launched again: it costs money, and may never start again
        the head       stopping, stopped    an error: its disk has the job's record (`cluster start`)
        another        stopping, stopped    an error: its disk may have what the user keeps there (`cluster start`)

    No other node is touched. The new nodes are launched in the places that `up` would try, in the same order. Raises
    the errors of prepare_up.
    """
    state = describe_cluster(clients.ec2, name=request.name, known=files.known_instances())
    leaving = tuple(
        node
        for node in state.nodes
        if node.instance_id in lost.values()
        or (node.state in {"stopping", "stopped"} and node.index in needed and node.index > 0)
    )
    # Not the number in cluster.toml: the cluster keeps its previous size.
    nodes = max([*lost, *needed, *(node.index for node in state.nodes)]) + 1
    request = replace(request, config=replace(request.config, nodes=nodes))
    return _prepare(clients, request, state, files=files, avoid=avoid, leaving=leaving, wait=WaitForEnding)


def _prepare(
    clients: Clients,
    request: Request,
    state: ClusterState,
    *,
    files: ClusterFiles,
    avoid: frozenset[str],
    leaving: tuple[Node, ...] = (),
    wait: type[WaitForInstances] = WaitForTerminated,
) -> Plan:
    staying = replace(state, nodes=tuple(node for node in state.nodes if node not in leaving))
    if request.config.nodes > 0:
        refuse_impossible(request, staying)
    return plan_resize(_describe_world(clients, request, staying, files=files, avoid=avoid), leaving, wait=wait)


def up(
    plan: Plan,
    *,
    clients: Clients,
    files: ClusterFiles,
    report: Report,
    replan: Replan | None = None,
    keep_failed: bool = False,
) -> ClusterState:
    """Applies a plan of prepare_up or prepare_resize, and returns the resulting cluster.

    replan: makes a new plan when nodes ended while starting for lack of capacity, or when the cluster has changed since
    it was planned. keep_failed: do not terminate new nodes after a failure. Raises the errors of `apply`.
    """
    avoid: frozenset[str] = frozenset()
    for attempt in range(MAX_PLANS):
        try:
            apply(plan, clients=clients, files=files, report=report, keep_failed=keep_failed)
        except (CapacityError, StalePlanError) as error:
            if replan is None or keep_failed or attempt == MAX_PLANS - 1:
                raise
            if isinstance(error, CapacityError):
                avoid |= {error.option}
            report(Event(kind="warn", what=f"{error.message}: planning again"))
            plan = replan(avoid)
        else:
            break
    if not plan and plan.world is not None:
        return plan.world.state  # of a moment ago
    return describe_cluster(clients.ec2, name=plan.cluster, known=files.known_instances())


def plan_up(world: World) -> Plan:
    """Plans to complete the cluster to `config.nodes` running nodes. Pure.

    Raises ConfigError for 0 nodes. Raises ClusterError when the cluster cannot be completed: a name is taken, it has
    more or other nodes, or its key is lost.
    """
    refuse_impossible(world.request, world.state)
    is_head = world.request.from_head is not None
    kinds = HEAD_KINDS if is_head else KINDS
    plans = (*(kind.plan_up for kind in kinds), *(kind.plan_on_nodes for kind in kinds))
    repair = () if is_head else plan_repair(world.state)
    return Plan(
        cluster=world.request.name,
        steps=(*repair, *(step for plan in plans if plan is not None for step in plan(world))),
        owner=world.caller.owner,
        tags=world.request.config.tags,
        world=world,
        left_alone=world.state.untrusted,
    )


def plan_resize(world: World, leaving: tuple[Node, ...], *, wait: type[WaitForInstances] = WaitForTerminated) -> Plan:
    """Plans to terminate `leaving`, then to complete the cluster to `config.nodes`, which may be 0. Pure.

    world: its state does not contain `leaving`. wait: the step after the termination. With 0 nodes, the key pair,
    security group and placement group remain, which cost nothing. The head's volume remains, too. Raises the errors of
    plan_up.
    """
    state, ids = world.state, tuple(node.instance_id for node in leaving)
    ending: tuple[Step, ...] = (TerminateInstances(nodes=leaving), wait(instance_ids=ids)) if leaving else ()
    if world.request.config.nodes > 0:
        plan = plan_up(world)
        return replace(plan, steps=(*ending, *plan.steps))
    if state.lease is not None and state.lease.limits:
        group = state.security_group  # this resize ends the nodes, not the lease
        none = Lease(set_at=state.lease.set_at + 1, then=state.lease.then)
        ending = (*ending, SetLease(lease=none, group_id=None if group is None else group.group_id))
    return Plan(cluster=world.request.name, steps=ending, owner=world.caller.owner, left_alone=state.untrusted)


def refuse_no_nodes(config: ProvisionConfig) -> None:
    """Raises ConfigError for 0 nodes."""
    if config.nodes == 0:
        raise ConfigError(
            "[provision] nodes = 0: `up` needs at least 1 node", hint="set nodes, or: cluster up --nodes N"
        )


def refuse_impossible(request: Request, state: ClusterState) -> None:
    """Raises ConfigError or ClusterError when no launch can make the cluster match cluster.toml."""
    name, config = request.name, request.config
    refuse_no_nodes(config)
    for node in state.nodes:
        where = f"{node.name} ({node.instance_id}) of cluster {name}"
        if node.state in {"stopping", "stopped"}:
            raise ClusterError(
                f"{where} is {node.state}: {node.state_reason or 'no reason given'}",
                hint="cluster start; or delete everything: cluster down",
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
        profile = find_profile_name(config, name=name)
        if profile is not None and (node.profile_arn or "").rpartition("/")[2] != profile:
            raise ClusterError(
                f"{where} has {'another' if node.profile_arn else 'no'} instance profile; [provision] "
                f'instance_profile = "{config.instance_profile}" is {profile}',
                hint="nodes get their profile at launch: cluster resize 0, then cluster up",
            )
        if node.index >= config.nodes:
            raise ClusterError(
                f"cluster {name} has {len(state.nodes)} nodes "
                f"({format_indices(n.index for n in state.nodes)}), not the {config.nodes} asked for",
                hint=f"cluster resize {config.nodes}, or cluster up --nodes {state.nodes[-1].index + 1}",
            )


def _describe_world(
    clients: Clients, request: Request, state: ClusterState, *, files: ClusterFiles, avoid: frozenset[str]
) -> World:
    """Returns everything that a plan needs, with the preflight only if nodes are missing."""
    config, group, ssh_from = request.config, state.security_group, None
    if request.from_head is not None:
        if others := [each.instance_id for each in state.untrusted if not each.problems]:
            raise ClusterError(
                f"another machine is adding nodes to cluster {request.name}: {', '.join(others)}", hint="cluster up"
            )
        if group is None or state.key_pair is None or not state.key_pair.ours:
            raise ClusterError(f"cluster {request.name} lacks its security group or key pair", hint="cluster up")
        ssh_from = ", ".join(group.ssh_open_to)  # the head does not change these rules
    with bounded_pool() as pool:
        asking = pool.submit(describe_caller, clients, config, ssh_from=ssh_from)
        finding = {
            kind.kind: pool.submit(kind.find, clients, request)
            for kind in (KINDS if request.from_head is None else (PLACEMENT_GROUP,))
            if config.nodes > 0 and (kind.plan_up or kind.plan_on_nodes) and kind.find is not None
            if kind.is_wanted is None or kind.is_wanted(request)
        }
    policy = None
    if config.instance_profile == "auto" and request.from_head is None:
        policy = render_role_policy(
            config,
            name=request.name,
            region=clients.region,
            data_url=request.data_url,
            results_url=request.results_url,
            replaces_nodes=request.replaces_nodes,
        )
    files.check_account(lambda: asking.result().account_id)
    world = World(
        request=request,
        state=replace(state, found={kind: one.result() for kind, one in finding.items()}),
        caller=asking.result(),
        local_key=files.find_public_key(),
        role_policy=policy,
    )
    if not world.missing:
        return world
    _refuse_ended(state)
    if not state.nodes or (state.lease is not None and state.lease.budget_usd is not None and not request.from_head):
        world = replace(world, spent_usd=request.find_spent(state.exists))
    return replace(world, preflight=_describe_preflight(clients, world, avoid))


def _refuse_ended(state: ClusterState) -> None:
    """Raises ClusterError for nodes whose lease has ended: new nodes would get the same one, and end as well."""
    end = None if state.lease is None else find_end(state.lease)
    if state.nodes and end is not None and end.at <= time.time():
        longer = "--budget USD" if end.why == "budget" else "+4h"
        raise ClusterError(
            f"the {end.why} of cluster {state.name} ended at {render_time(end.at)}: its nodes are ending",
            hint=f"cluster down, then cluster up; or cluster lease {longer}, if its nodes still run",
        )


def _describe_preflight(clients: Clients, world: World, avoid: frozenset[str]) -> Preflight:
    preflight = describe_preflight(clients, world)
    options = tuple(option for option in preflight.options if option.label not in avoid)
    if not options:
        raise NoCapacityError(
            f"no capacity in any place that was tried: {', '.join(sorted(avoid))}",
            hint=MORE_CHOICES,
        )
    return replace(preflight, options=options)
