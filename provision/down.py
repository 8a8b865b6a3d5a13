"""`down`: what is there, the plan that ends it, and a fresh look that proves that nothing is left."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from botocore.exceptions import BotoCoreError

from foundation.errors import AwsError
from foundation.progress import Event, Report
from foundation.waiting import poll
from provision.apply import apply
from provision.aws.clients import Clients
from provision.describe import describe_cluster
from provision.files import ClusterFiles
from provision.model import ClusterState
from provision.plan import Context, Plan, Step
from provision.preflight.prices import describe_node_prices
from provision.receipt import LOCAL_FILES, Prices, Receipt, deleted_by, make_bill, terminated_by
from provision.resources.launch_recovery import wait_for_interrupted_launches, wait_for_what_was_made
from provision.resources.resource import Look, Scope
from provision.resources.table import KINDS

LEFTOVERS_TIMEOUT_S = 60.0
"""Volumes and interfaces vanish from EC2's lists a little later than their instance."""

PRICES_TIMEOUT_S = 10.0
"""How long the receipt waits for prices that were asked for before the deletion began, in seconds."""

MAX_PASSES = 3
"""How often `down` looks again and deletes what has turned up meanwhile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForgetFiles(Step):
    """Remove the cluster's private key, known hosts and journal from this machine."""

    def describe(self) -> str:
        """In a few words."""
        return "remove the cluster's key and known hosts from this machine"

    def deletions(self) -> Sequence[tuple[str, Sequence[str]]]:
        """They are counted as one."""
        return ((LOCAL_FILES, ["private key, known hosts"]),)

    def apply(self, context: Context) -> bool:
        """Always there to be removed: the lock is one of them."""
        context.files.forget()
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """What `down` is to do; false when nothing of the cluster is there.

    urls: folders in S3 that the cluster uses. local_files: this machine has files of it. ended: ids of instances that
    had ended, or were ending, before, as far as EC2 still shows them.
    """

    plan: Plan
    urls: tuple[str, ...] = ()
    local_files: bool = False
    ended: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.plan)


def prepare_down(
    clients: Clients, *, name: str, files: ClusterFiles, report: Report, urls: Sequence[str] = ()
) -> Ending:
    """What `down` would do; only reads.

    urls: folders in S3 (s3://bucket/folder/) below which interrupted uploads are looked for.
    After an interrupted `up` it may wait, see wait_for_interrupted_launches. What IAM and S3 do not let the caller
    look at is no error: the receipt says so. Raises AwsError, ClusterError.
    """
    scope = Scope(clients=clients, name=name, urls=tuple(urls))
    looks = {kind.kind: kind.look for kind in KINDS}
    wait_for_interrupted_launches(clients.ec2, name=name, files=files, report=report)
    wait_for_what_was_made(files=files, is_listed=lambda kind: bool(looks[kind](scope).left), report=report)
    state = _describe(scope, files)
    plan = plan_down(state, local_files=files.exist)
    return Ending(plan=plan, urls=scope.urls, local_files=files.exist, ended=tuple(state.ended))


def plan_down(state: ClusterState, *, local_files: bool = False) -> Plan:
    """Everything that carries the cluster's tag, in the order in which AWS lets go of it; empty when it is gone. Pure.

    By the tag, so that every machine can delete the cluster: instances that are not trusted end, too.
    local_files: whether files of the cluster are on this machine; they go last: until then `up` could go on.
    """
    kinds = [kind.plan_down for kind in reversed(KINDS) if kind.plan_down is not None]
    steps = tuple(step for plan in kinds for step in plan(state))
    return Plan(cluster=state.name, steps=(*steps, ForgetFiles()) if steps or local_files else ())


def down(ending: Ending, *, clients: Clients, files: ClusterFiles, report: Report) -> Receipt:
    """Carries out a plan of prepare_down, and looks afresh: what turns up then is deleted as well.

    Raises as `apply` does.
    """
    name, plans = ending.plan.cluster, [ending.plan]
    began = datetime.now(UTC)
    prices = _ask_prices(clients, ending.plan)
    apply(ending.plan, clients=clients, files=files, report=report)
    scope = Scope(clients=clients, name=name, urls=ending.urls)
    looks = _look_for_rest(scope, timeout_s=LEFTOVERS_TIMEOUT_S if ending else 0.0)
    while any(look.left for look in looks) and len(plans) < MAX_PASSES:
        done: set[Step] = {step for plan in plans for step in plan.steps}
        further = plan_down(_describe(scope, files), local_files=files.exist)
        if done.issuperset(further.steps):
            break
        report(Event(kind="info", what="more of the cluster has turned up"))
        apply(further, clients=clients, files=files, report=report)
        plans.append(further)
        looks = _look_for_rest(scope, timeout_s=LEFTOVERS_TIMEOUT_S)
    return Receipt(
        cluster=name,
        deleted=tuple(each for each in deleted_by(*plans) if ending.local_files or each.kind != LOCAL_FILES),
        leftovers=tuple(resource for look in looks for resource in look.left),
        looked_for=tuple(each for look in looks for each in look.looked_for),
        unseen=tuple(unseen for look in looks for unseen in look.unseen),
        in_progress=tuple(upload for look in looks for upload in look.in_progress),
        bill=make_bill(plans, prices=_wait_for_prices(prices), now=began, ended=ending.ended),
    )


def _describe(scope: Scope, files: ClusterFiles) -> ClusterState:
    """The cluster with all that it has. Raises AwsError."""
    state = describe_cluster(scope.clients.ec2, name=scope.name, known=files.known_instances())
    found = {}
    for kind in reversed(KINDS):
        if kind.find is not None:
            try:
                found[kind.kind] = kind.find(scope)
            except AwsError:
                if not kind.may_be_unseen:  # the receipt says so of the others
                    raise
    return replace(state, found=found)


def _look_for_rest(scope: Scope, *, timeout_s: float) -> list[Look]:
    """A fresh look at every kind: when nothing is left, or when timeout_s seconds are over. Raises AwsError.

    Only kinds of which something was left are looked at again.
    """
    looks: dict[str, Look] = {}

    def look() -> bool | None:
        for kind in reversed(KINDS):
            if kind.kind not in looks or looks[kind.kind].left:
                looks[kind.kind] = kind.look(scope)
        return None if any(each.left for each in looks.values()) else True

    poll(look, timeout_s=timeout_s)
    return list(looks.values())


def _ask_prices(clients: Clients, plan: Plan) -> Future[Prices]:
    """Begins to ask what the nodes cost, beside the deletion: that must not wait for a price list out of reach."""
    nodes = terminated_by(plan)
    answer: Future[Prices] = Future()

    def ask() -> None:
        try:
            answer.set_result(describe_node_prices(clients, nodes))
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is read
            answer.set_exception(error)

    if nodes:
        threading.Thread(target=ask, name="prices", daemon=True).start()
    else:
        answer.set_result({})
    return answer


def _wait_for_prices(prices: Future[Prices]) -> Prices:
    """The prices, if they came in time."""
    try:
        return prices.result(timeout=PRICES_TIMEOUT_S)
    except (TimeoutError, BotoCoreError):  # the cluster is gone by now, and that is what the receipt is about
        return {}
