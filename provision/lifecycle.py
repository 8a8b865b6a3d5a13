"""`up` and `resize`, each in two halves: one decides and can be shown, the other one acts. ending.py has `down`."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from provision.apply import apply
from provision.aws import Clients
from provision.config import ProvisionConfig
from provision.describe import describe_cluster
from provision.errors import AwsError, CapacityError, NotFoundError, StalePlanError
from provision.files import ClusterFiles
from provision.iam_policy import render_role_policy
from provision.instance_profile import find_instance_profile, plan_instance_profile
from provision.model import Caller, ClusterState, Preflight
from provision.plan import (
    Plan,
    least_nodes,
    missing_nodes,
    plan_resize,
    plan_up,
    refuse_impossible,
    without_leaving,
)
from provision.preflight.caller import describe_caller
from provision.preflight.describe import describe_preflight
from provision.progress import Event, Report, silent
from provision.settle import wait_for_interrupted_launches
from provision.steps import Step

Replan = Callable[[frozenset[str]], Plan]
"""Plans again; without the places, by their labels, that turned out to have no room."""

MAX_PLANS = 12
"""How often one `up` plans anew: when nodes end while starting, or when others change the cluster meanwhile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What a cluster is to be. data_url and results_url: what a role that is made for it may read and write."""

    name: str
    config: ProvisionConfig
    data_url: str | None = None
    results_url: str | None = None


def prepare_up(clients: Clients, *, wishes: Wishes, files: ClusterFiles, avoid: frozenset[str] = frozenset()) -> Plan:
    """What `up` would do; only reads. Empty when the cluster runs as asked for.

    avoid: labels of places that are not to be tried.
    Raises ConfigError, AwsError, ClusterError: see plan_up and describe_preflight.
    """
    name, config = wishes.name, wishes.config
    state = describe_cluster(clients.ec2, name=name, known=files.known_instances())
    refuse_impossible(name=name, config=config, state=state)
    caller = describe_caller(clients, config)
    return plan_up(
        name=name,
        config=config,
        state=state,
        caller=caller,
        preflight=_describe_preflight(clients, wishes, state, caller, avoid),
        local_key=files.find_public_key(),
        profile_steps=_plan_profile(clients, wishes),
    )


def prepare_resize(
    clients: Clients,
    *,
    wishes: Wishes,
    files: ClusterFiles,
    avoid: frozenset[str] = frozenset(),
    report: Report = silent,
) -> Plan:
    """What `resize` to `wishes.config.nodes` would do; only reads. Empty when it has that size.

    After an interrupted launch of nodes that are to end now it may wait, see wait_for_interrupted_launches.
    Raises NotFoundError when there is no cluster, and as prepare_up does.
    """
    name, config = wishes.name, wishes.config
    if any(index >= config.nodes for launch in files.launches() for index in launch.indices):
        wait_for_interrupted_launches(clients.ec2, name=name, files=files, report=report)
    state = describe_cluster(clients.ec2, name=name, known=files.known_instances())
    if not state.exists:
        raise NotFoundError(f"there is no cluster {name} to resize", hint=f"cluster up --nodes {max(config.nodes, 1)}")
    caller = describe_caller(clients, config)
    staying = without_leaving(config, state)
    if config.nodes > 0:
        refuse_impossible(name=name, config=config, state=staying)
    return plan_resize(
        name=name,
        config=config,
        state=state,
        caller=caller,
        preflight=_describe_preflight(clients, wishes, staying, caller, avoid),
        local_key=files.find_public_key(),
        profile_steps=_plan_profile(clients, wishes) if config.nodes > 0 else (),
    )


def up(
    plan: Plan,
    *,
    clients: Clients,
    files: ClusterFiles,
    report: Report,
    replan: Replan | None = None,
    keep_failed: bool = False,
) -> ClusterState:
    """Carries out a plan of prepare_up or prepare_resize; the cluster as it then is.

    replan: when nodes ended while starting because there was no room after all, or when the cluster is not any more
    as it was planned for, plan anew and go on. keep_failed: leave what was launched when something fails.
    Raises as `apply` does.
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
    return describe_cluster(clients.ec2, name=plan.cluster, known=files.known_instances())


def _describe_preflight(
    clients: Clients, wishes: Wishes, state: ClusterState, caller: Caller, avoid: frozenset[str]
) -> Preflight | None:
    """What has to be known before nodes are launched; None when none are."""
    missing = missing_nodes(wishes.config, state)
    if not missing:
        return None
    preflight = describe_preflight(
        clients,
        config=wishes.config,
        state=state,
        caller=caller,
        name=wishes.name,
        missing=missing,
        least=least_nodes(wishes.config, state),
    )
    options = tuple(option for option in preflight.options if option.label not in avoid)
    if not options:
        raise AwsError(
            f"no room in any place that was tried: {', '.join(sorted(avoid))}",
            hint="wait, or give AWS more to choose from: [provision] instance_types, market, min_nodes",
        )
    return replace(preflight, options=options)


def _plan_profile(clients: Clients, wishes: Wishes) -> tuple[Step, ...]:
    """What is missing of the nodes' role, where one is to be made for them."""
    if wishes.config.instance_profile != "auto":
        return ()
    policy = render_role_policy(data_url=wishes.data_url, results_url=wishes.results_url, region=clients.region)
    profile = find_instance_profile(clients.iam, name=wishes.name, region=clients.region)
    return plan_instance_profile(wishes.config, profile, policy, name=wishes.name)
