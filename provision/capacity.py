"""Finds a place for the nodes: zone after zone, type after type, market after market, until AWS has room.

All nodes go to one place. Every place is first asked for all nodes; only when none has room for all of them, and
fewer are good enough, each is asked for fewer.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from provision.aws import error_code, translate_refusal
from provision.context import Context
from provision.errors import AwsError, QuotaError, StalePlanError
from provision.files import TOKEN_LIFETIME_S
from provision.hints import RETRY_CODES
from provision.launch import call_run_instances, request_digest, run_instances_request
from provision.model import LaunchOption, Quota, format_indices
from provision.preflight.quotas import ASK_FOR_LESS, find_quota_kind, render_quota, request_increase
from provision.progress import Event
from provision.settle import forget_seen_launches, wait_for_interrupted_launches
from provision.steps import LaunchNodes

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import RunInstancesRequestTypeDef

NO_ROOM_CODES = frozenset(
    {
        "InsufficientCapacity",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientHostCapacity",
        "InsufficientInstanceCapacity",
        "InsufficientReservedInstanceCapacity",
        "SpotMaxPriceTooLow",
        "Unsupported",
    }
)
"""Codes that say: not this type, in this zone, from this market; perhaps elsewhere
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html)."""

QUOTA_CODES = frozenset(
    {"InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "VcpuLimitExceeded", "SpotInstanceLimitExceeded"}
)
ROUND_TIMEOUT_S = 900.0
"""After so many seconds no further place is tried, however many there are."""
_SENTENCE_END = re.compile(r"\.\s+(?=[A-Z])")
_FIRST_PAUSE_S = 10.0
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Try:
    """One RunInstances: a place, how many nodes are good enough there, and the request with its digest."""

    option: LaunchOption
    least: int
    request: RunInstancesRequestTypeDef
    digest: str

    @property
    def bucket(self) -> tuple[str, str, int]:
        """What a limit of the account is about: it is the same in every zone."""
        return self.option.market, self.option.instance_type, self.least


def launch_nodes(step: LaunchNodes, context: Context) -> bool:
    """Launches the nodes in one call, in the first place that has room. False: nothing was launched.

    That is so when they are there already (a plan may be older than EC2's lists), or when there is no room and the
    cluster can do without them. Raises StalePlanError when some of them are there, AwsError when there is no room.
    """
    tries = _plan_tries(step, context)
    wait_for_interrupted_launches(
        context.clients.ec2,
        name=context.cluster,
        files=context.files,
        report=context.report,
        except_digests=frozenset(attempt.digest for attempt in tries),
    )
    forget_seen_launches(context.clients.ec2, name=context.cluster, files=context.files)
    live = context.describe_instances().live
    present = {node.index for node in live} & set(step.indices)
    if present == set(step.indices):
        return False
    if present:
        raise StalePlanError(
            f"nodes {format_indices(present)} appeared after the launch of nodes "
            f"{format_indices(step.indices)} was planned",
            hint="the same command again takes them into account",
        )
    refused = _search(step, tries, context)
    if refused is None:
        return True
    if step.least > 0:
        raise AwsError(
            f"no capacity for {_wanted(step)} in any place that was tried, and nothing was launched:\n"
            + "\n".join(f"  {line}" for line in refused),
            hint="wait, or give AWS more to choose from: [provision] instance_types, market, min_nodes, "
            "capacity_wait_s",
        )
    context.without.update(step.indices)
    context.report(Event(kind="warn", what=f"no capacity for nodes {format_indices(step.indices)}: going on without"))
    return False


def _wanted(step: LaunchNodes) -> str:
    fewer = f" (nor for {step.least})" if step.least < len(step.indices) else ""
    every = len(step.indices)
    return f"{every} {'node' if every == 1 else 'nodes'}{fewer}"


def _plan_tries(step: LaunchNodes, context: Context) -> tuple[Try, ...]:
    """What to ask for, in this order. A try that an interrupted run has begun comes first: it may have succeeded."""
    options = step.options if context.option is None else (context.option,)
    every = len(step.indices)
    fewer = max(step.least, 1)
    group_id = context.group_id(step.group_id)
    tries: list[Try] = []
    for least in (every, fewer) if fewer < every else (every,):
        for option in options:
            request = run_instances_request(
                step, option, least=least, name=context.cluster, owner=context.owner, group_id=group_id
            )
            tries.append(Try(option=option, least=least, request=request, digest=request_digest(request)))
    now = time.time()
    begun = {launch.digest for launch in context.files.launches() if now - launch.started_at < TOKEN_LIFETIME_S}
    return tuple(sorted(tries, key=lambda attempt: attempt.digest not in begun))


def _search(step: LaunchNodes, tries: tuple[Try, ...], context: Context) -> list[str] | None:
    """Tries until nodes are launched, and returns None; else a line for each place that had no room.

    Raises QuotaError when nothing is left to try that a limit of the account does not forbid.
    """
    started = time.monotonic()
    pause_s = _FIRST_PAUSE_S
    over_quota: dict[tuple[str, str, int], QuotaError] = {}
    while True:
        refused: list[str] = []
        for position, attempt in enumerate(tries):
            if attempt.bucket in over_quota:
                continue
            if position and time.monotonic() - started > max(ROUND_TIMEOUT_S, step.capacity_wait_s):
                return [*refused, f"the rest was not tried: {ROUND_TIMEOUT_S:.0f} s had passed"]
            try:
                words = _try(step, attempt, context)
            except QuotaError as error:
                # Of the same kind no other zone helps; fewer nodes, another type or another market may.
                over_quota[attempt.bucket] = error
                words = error.message.partition("\n")[0].removeprefix("AWS says: ")
            if words is None:
                return None
            refused.append(f"{_name(step, attempt)}: {words}")
            context.report(Event(kind="info", what=f"no room for {refused[-1]}"))
        if over_quota and all(attempt.bucket in over_quota for attempt in tries) and step.least > 0:
            raise next(iter(over_quota.values()))
        left_s = step.capacity_wait_s - (time.monotonic() - started)
        if left_s <= 0:
            return refused
        pause_s = min(pause_s, left_s)
        context.report(Event(kind="info", what=f"no room anywhere: trying again in {pause_s:.0f} s"))
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _try(step: LaunchNodes, attempt: Try, context: Context) -> str | None:
    """Asks for one place. None: nodes were launched; else why there is no room, in AWS's words."""
    files = context.files
    # An interrupted run, or a call whose reply was lost, may have launched nodes that EC2 does not list yet.
    unclear = any(launch.digest == attempt.digest for launch in files.launches())

    def note_repeat(event: Event) -> None:
        nonlocal unclear
        unclear = True
        context.report(event)

    token = files.client_token(attempt.digest, indices=step.indices, now=time.time())
    try:
        launched = call_run_instances(context.clients.run_ec2, attempt.request, client_token=token, report=note_repeat)[
            "Instances"
        ]
    except ClientError as error:
        code = error_code(error)
        about_launch = code in NO_ROOM_CODES | QUOTA_CODES  # what was launched under the token would be the answer
        # A plain no: nothing was launched under this token. Others may come after the deed, or tell nothing of it.
        if about_launch or not (unclear or code in RETRY_CODES):
            files.forget_launch(attempt.digest)
        if code in QUOTA_CODES:
            raise _explain_quota(error, attempt.option, step.quotas) from error
        if code not in NO_ROOM_CODES:
            raise
        return f"{_first_sentence(error.response['Error'].get('Message', 'no reason given'))} ({code})"
    context.launched.update(instance["InstanceId"] for instance in launched)
    files.note_launched(attempt.digest, (instance["InstanceId"] for instance in launched))
    context.option = attempt.option
    missing = step.indices[len(launched) :]  # EC2 counts its launch index from 0: the first indices are there
    context.without.update(missing)
    if missing:
        what = (
            f"AWS has room for {len(launched)} of {len(step.indices)} nodes: going on without {format_indices(missing)}"
        )
        context.report(Event(kind="warn", what=what))
    if len(step.options) > 1:
        context.report(Event(kind="info", what=f"{len(launched)} x {attempt.option.label}"))
    return None


def _first_sentence(words: str) -> str:
    """What is the matter. What follows is advice to try other zones, which this program does by itself."""
    return _SENTENCE_END.split(words, maxsplit=1)[0].rstrip(". ")


def _name(step: LaunchNodes, attempt: Try) -> str:
    every = len(step.indices)
    return f"{attempt.least}{'' if attempt.least == every else f' to {every}'} x {attempt.option.label}"


def _explain_quota(error: ClientError, option: LaunchOption, quotas: tuple[Quota, ...]) -> QuotaError:
    """The account's limit, with all that is known of it."""
    translated = translate_refusal(error, "launching nodes")
    kind = find_quota_kind(option.instance_type, option.market)
    met = [quota for quota in quotas if kind is not None and quota.code == kind.code]
    lines = [f"  {render_quota(quota)}" for quota in met]
    hint = f"{ASK_FOR_LESS}, or for a higher limit: {request_increase(met)}" if met else translated.hint
    return QuotaError("\n".join([translated.message, *lines]), hint=hint)
