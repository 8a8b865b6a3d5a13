"""`down`, in two halves: one decides and can be shown, the other one acts and proves that nothing is left."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from botocore.exceptions import BotoCoreError

from provision.apply import apply
from provision.aws import Clients, aws_errors
from provision.describe import describe_cluster
from provision.errors import AwsError
from provision.files import ClusterFiles
from provision.instance_profile import find_instance_profile
from provision.leftovers import Look, Resource, Unseen, ec2_looks, wait_for_nothing
from provision.model import ClusterState, InstanceProfile, profile_name
from provision.plan import Plan
from provision.plan_down import plan_down
from provision.preflight.prices import describe_node_prices
from provision.progress import Event, Report
from provision.receipt import LOCAL_FILES, Prices, Receipt, deleted_by, make_bill, profile_resources, upload_resource
from provision.settle import wait_for_interrupted_launches, wait_for_what_was_made
from provision.spot_requests import find_spot_requests
from provision.steps import Step, TerminateInstances
from provision.strays import find_strays
from provision.uploads import Uploads, find_uploads, is_dead, parse_folder

LEFTOVERS_TIMEOUT_S = 60.0
"""Volumes and interfaces vanish from EC2's lists a little later than their instance."""

PRICES_TIMEOUT_S = 10.0
"""How long the receipt waits for prices that were asked for before the deletion began, in seconds."""

MAX_PASSES = 3
"""How often `down` looks again and deletes what has turned up meanwhile."""

ROLE = "role and instance profile"


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
    wait_for_interrupted_launches(clients.ec2, name=name, files=files, report=report)
    wait_for_what_was_made(clients.ec2, name=name, files=files, report=report)
    state = describe_cluster(clients.ec2, name=name, known=files.known_instances())
    plan = _make_plan(clients, state, files=files, urls=tuple(urls))
    return Ending(plan=plan, urls=tuple(urls), local_files=files.exist, ended=tuple(state.ended))


def down(ending: Ending, *, clients: Clients, files: ClusterFiles, report: Report) -> Receipt:
    """Carries out a plan of prepare_down, and looks afresh: what turns up then is deleted as well.

    Raises as `apply` does.
    """
    name, plans = ending.plan.cluster, [ending.plan]
    began = datetime.now(UTC)
    prices = _ask_prices(clients, ending.plan)
    apply(ending.plan, clients=clients, files=files, report=report)
    rest = _Rest(clients=clients, name=name, urls=ending.urls)
    left = rest.look(timeout_s=LEFTOVERS_TIMEOUT_S if ending else 0.0)
    while left and len(plans) < MAX_PASSES:
        done: set[Step] = {step for plan in plans for step in plan.steps}
        state = describe_cluster(clients.ec2, name=name, known=files.known_instances())
        further = _make_plan(clients, state, files=files, urls=ending.urls)
        if done.issuperset(further.steps):
            break
        report(Event(kind="info", what="more of the cluster has turned up"))
        apply(further, clients=clients, files=files, report=report)
        plans.append(further)
        left = rest.look(timeout_s=LEFTOVERS_TIMEOUT_S)
    return Receipt(
        cluster=name,
        deleted=tuple(each for each in deleted_by(*plans) if ending.local_files or each.kind != LOCAL_FILES),
        leftovers=left,
        looked_for=rest.looked_for,
        unseen=rest.unseen,
        in_progress=tuple(upload for upload in rest.uploads.found if not is_dead(upload)),
        bill=make_bill(plans, prices=_wait_for_prices(prices), now=began, ended=ending.ended),
    )


class _Rest:
    """What is left of a cluster, by a fresh look at every kind of thing that it may have.

    After look(): `uploads` as S3 has them, `unseen` what could not be looked at, `looked_for` what was.
    """

    def __init__(self, *, clients: Clients, name: str, urls: tuple[str, ...]) -> None:
        self._clients = clients
        self._name = name
        self._urls = urls
        self._role_unseen: tuple[Unseen, ...] = ()
        self.uploads = Uploads()

    @property
    def unseen(self) -> tuple[Unseen, ...]:
        """What could not be looked at."""
        return (*self._role_unseen, *self.uploads.unseen)

    @property
    def looked_for(self) -> tuple[str, ...]:
        """What could."""
        roles = () if self._role_unseen else ("roles", "instance profiles")
        seen = len({parse_folder(url) for url in self._urls}) > len(self.uploads.unseen)
        return (*self._ec2_looks(), *roles, *(("uploads",) if seen else ()))

    def look(self, *, timeout_s: float) -> tuple[Resource, ...]:
        """Looks until nothing is left, timeout_s seconds at most. Raises AwsError."""
        looks = {**self._ec2_looks(), "roles": self._look_at_role}
        if self._urls:
            looks["uploads"] = self._look_at_uploads
        return wait_for_nothing(looks, timeout_s=timeout_s)

    def _ec2_looks(self) -> dict[str, Look]:
        return ec2_looks(self._clients.ec2, name=self._name)

    def _look_at_role(self) -> tuple[Resource, ...]:
        profile, self._role_unseen = _find_profile(self._clients, name=self._name)
        return profile_resources(profile)

    def _look_at_uploads(self) -> tuple[Resource, ...]:
        self.uploads = _find_uploads(self._clients, name=self._name, urls=self._urls)
        return tuple(upload_resource(upload) for upload in self.uploads.found if is_dead(upload))


def _make_plan(clients: Clients, state: ClusterState, *, files: ClusterFiles, urls: tuple[str, ...]) -> Plan:
    """Looks at all else that the cluster has, and plans its end. Raises AwsError."""
    name = state.name
    profile, _ = _find_profile(clients, name=name)
    return plan_down(
        replace(state, spot_requests=find_spot_requests(clients.ec2, name=name)),
        profile=profile,
        uploads=_find_uploads(clients, name=name, urls=urls).found,
        strays=find_strays(clients.ec2, name=name),
        local_files=files.exist,
    )


def _find_profile(clients: Clients, *, name: str) -> tuple[InstanceProfile | None, tuple[Unseen, ...]]:
    """The nodes' role. Who may end the cluster need not be allowed to use IAM: what costs money goes nevertheless."""
    try:
        return find_instance_profile(clients.iam, name=name, region=clients.region), ()
    except AwsError as error:
        return None, (Unseen(kind=ROLE, why=error.message),)


def _find_uploads(clients: Clients, *, name: str, urls: tuple[str, ...]) -> Uploads:
    """The interrupted uploads of the caller, or of the nodes."""
    if not urls:
        return Uploads()
    try:
        with aws_errors("asking who the caller is"):
            owner = clients.sts.get_caller_identity()["Arn"]
    except AwsError as error:
        return Uploads(unseen=tuple(Unseen(kind=f"uploads to {parse_folder(url)}", why=error.message) for url in urls))
    role = profile_name(name, region=clients.region)
    return find_uploads(clients.s3, urls=urls, owner=owner, now=datetime.now(UTC), node_role=role)


def _ask_prices(clients: Clients, plan: Plan) -> Future[Prices]:
    """Begins to ask what the nodes cost, beside the deletion: that must not wait for a price list out of reach."""
    nodes = [
        node for step in plan.steps if isinstance(step, TerminateInstances) for node in (*step.nodes, *step.untrusted)
    ]
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
