"""RunInstances: its request, and the search for a place: zone after zone, type after type, market after market.

All nodes go to one place. Every place is first asked for all nodes; only when none has room for all of them, and
fewer are good enough, each is asked for fewer.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
)

from foundation.errors import AwsError, QuotaError, StalePlanError
from foundation.progress import Event, Report
from provision.aws.clients import NOT_FOUND_TIMEOUT_S, aws_words, error_code, translate_refusal
from provision.aws.error_hints import RETRY_CODES
from provision.describe import describe_now
from provision.files import TOKEN_LIFETIME_S
from provision.model import MAX_TAG_LENGTH, TAG_INDEX, LaunchOption, Quota, count, format_indices
from provision.plan import Context, Step, Wanted
from provision.preflight.quotas import ASK_FOR_LESS, find_quota_kind, render_quota, request_increase
from provision.resources.instance_profile import find_profile_name
from provision.resources.launch_recovery import forget_seen_launches, wait_for_interrupted_launches
from provision.resources.placement_group import PLACEMENT_GROUP, find_placement_name
from provision.resources.resource import DryRun, tag_specification
from provision.resources.security_group import find_group

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import (
        InstanceNetworkInterfaceSpecificationTypeDef,
        ReservationResponseTypeDef,
        RunInstancesRequestTypeDef,
        SpotMarketOptionsTypeDef,
    )

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

LAUNCH_ATTEMPTS = 8
"""With the back-off below: about two minutes."""
_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 30.0

# A boothook, as cloud-init runs it before sshd starts, where the image orders them so, and at every boot:
# https://cloudinit.readthedocs.io/en/latest/explanation/format.html#cloud-boothook
USER_DATA = """\
#cloud-boothook
#!/bin/sh
# Has sshd end sessions whose client is gone. A node that was frozen or cut off hears nothing of its client's end, and
# with the kernel's own keepalive a session then goes on for two hours.
config=/etc/ssh/sshd_config
settings='# Written by cluster at boot.
ClientAliveInterval 15
ClientAliveCountMax 4'
# sshd uses the first value that it finds.
if grep -Eqi '^ *include .*/sshd_config\\.d/' $config; then
    file=$config.d/00-cluster.conf
    [ "$(cat $file 2>/dev/null)" != "$settings" ] || exit 0
    mkdir -p $config.d
    echo "$settings" >$file
else
    ! grep -q '^# Written by cluster' $config || exit 0
    cp -p $config $config.new && { echo "$settings"; cat $config; } >$config.new && mv $config.new $config
fi
if [ -d /run/systemd/system ]; then
    # Without waiting: sshd may be about to start after this script.
    for service in ssh sshd; do systemctl --no-block try-reload-or-restart $service.service; done 2>/dev/null
elif [ -s /run/sshd.pid ]; then
    kill -HUP "$(cat /run/sshd.pid)"
fi
exit 0
"""

_NOT_YET_KNOWN = frozenset({"InvalidGroup.NotFound", "InvalidKeyPair.NotFound", "InvalidPlacementGroup.Unknown"})


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchNodes(Step):
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

    def describe(self) -> str:
        return f"launch {count(len(self.indices), 'node')} ({format_indices(self.indices)})"

    def apply(self, context: Context) -> bool:
        """Launches the nodes in one call, in the first place that has room. False: nothing was launched.

        That is so when they are there already (a plan may be older than EC2's lists), or when there is no room and the
        cluster can do without them. Raises StalePlanError when some of them are there, AwsError when there is no room.
        """
        tries = _plan_tries(self, context)
        wait_for_interrupted_launches(
            context.clients.ec2,
            name=context.cluster,
            files=context.files,
            report=context.report,
            except_digests=frozenset(attempt.digest for attempt in tries),
        )
        forget_seen_launches(context.clients.ec2, name=context.cluster, files=context.files)
        live = describe_now(context).live
        present = {node.index for node in live} & set(self.indices)
        if present == set(self.indices):
            return False
        if present:
            raise StalePlanError(
                f"nodes {format_indices(present)} appeared after the launch of nodes "
                f"{format_indices(self.indices)} was planned",
                hint="the same command again takes them into account",
            )
        refused = _search(self, tries, context)
        if refused is None:
            return True
        if self.least > 0:
            raise AwsError(
                f"no capacity for {_wanted(self)} in any place that was tried, and nothing was launched:\n"
                + "\n".join(f"  {line}" for line in refused),
                hint="wait, or give AWS more to choose from: [provision] instance_types, market, min_nodes, "
                "capacity_wait_s",
            )
        context.without.update(self.indices)
        context.report(
            Event(kind="warn", what=f"no capacity for nodes {format_indices(self.indices)}: going on without")
        )
        return False


def plan_launches(wanted: Wanted) -> tuple[LaunchNodes, ...]:
    """What launches the missing nodes: one call, or more where their indices do not fit into one tag. Pure."""
    preflight = wanted.preflight
    if preflight is None:
        return ()
    group, missing = find_group(wanted), wanted.missing
    batches = _batches(list(missing))
    least = wanted.least_missing if len(batches) == 1 else len(missing)
    return tuple(
        LaunchNodes(
            indices=indices,
            least=min(least, len(indices)),
            group_id=group.group_id if group else None,
            key_name=wanted.resource_name,
            volume_size_gib=wanted.config.volume_size_gib,
            public_address=preflight.public_address,
            options=preflight.options,
            capacity_wait_s=wanted.config.capacity_wait_s,
            placement_group=find_placement_name(wanted),
            instance_profile=find_profile_name(wanted.config, name=wanted.name),
            quotas=preflight.quotas,
        )
        for indices in batches
    )


def launch_dry_runs(ec2: EC2Client, wanted: Wanted) -> Iterator[DryRun]:
    """The launch without what is not there yet: EC2 would refuse that instead of telling about permissions."""
    if wanted.preflight is None:
        return
    options, group, key = wanted.preflight.options, wanted.state.security_group, wanted.state.key_pair
    placement = PLACEMENT_GROUP.found_in(wanted.state)
    usable = group is not None and group.vpc_id == options[0].vpc_id and key is not None and key.ours
    launch = LaunchNodes(
        indices=wanted.missing,
        least=len(wanted.missing),
        group_id=None,
        key_name=wanted.resource_name,
        volume_size_gib=wanted.config.volume_size_gib,
        public_address=wanted.config.ssh_address == "public",
        options=options,
        placement_group=placement.group_name if placement is not None and placement.ours else None,
    )
    request = run_instances_request(
        launch,
        options[0],
        least=launch.least,
        name=wanted.name,
        owner=wanted.caller.owner,
        group_id=group.group_id if group is not None and usable else None,
    )
    run = partial(DryRun, action="ec2:RunInstances", call=ec2.run_instances)
    yield run(request=request, also=("ec2:CreateTags",))  # the request tags what it makes
    if wanted.config.instance_profile not in {"none", "auto"}:
        profile = {"IamInstanceProfile": {"Name": wanted.config.instance_profile}}
        yield run(request={**request, **profile}, also=("iam:PassRole",))


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


def _wanted(step: LaunchNodes) -> str:
    fewer = f" (nor for {step.least})" if step.least < len(step.indices) else ""
    return f"{count(len(step.indices), 'node')}{fewer}"


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


# AWS names the zone that was asked for, as the line does already.
_ZONE_AGAIN = re.compile(r" in the Availability Zone you requested \([a-z0-9-]+\)")


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
            refused.append(f"{_name(step, attempt)}: {_ZONE_AGAIN.sub('', words)}")
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


def run_instances_request(
    step: LaunchNodes, option: LaunchOption, *, least: int, name: str, owner: str, group_id: str | None
) -> RunInstancesRequestTypeDef:
    """The whole request but its ClientToken. least: how many are good enough.

    Metadata by IMDSv2 only, one hop away: containers on a node cannot take the node's role. The root volume
    is encrypted and ends with its instance. sshd ends sessions whose client is gone (USER_DATA). All instances get
    the same tags: provision/describe.py tells how an index comes of them. group_id: None for a dry run before there
    is one.
    """
    tag = partial(tag_specification, name=name, owner=owner, role="node")
    request: RunInstancesRequestTypeDef = {
        "ImageId": option.image_id,
        "InstanceType": option.instance_type,  # type: ignore[typeddict-item]  # any string; AWS judges
        "MinCount": least,
        "MaxCount": len(step.indices),
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": option.root_device,
                "Ebs": {
                    "VolumeSize": step.volume_size_gib,
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "UserData": USER_DATA,
        "NetworkInterfaces": [_network_interface(option, group_id=group_id, public_address=step.public_address)],
        "TagSpecifications": [
            tag("instance", more={TAG_INDEX: format_indices(step.indices)}),
            tag("volume"),
            tag("network-interface"),
        ],
    }
    if group_id is not None:
        request["KeyName"] = step.key_name
    if option.placement and step.placement_group is not None:
        request["Placement"] = {"GroupName": step.placement_group}
    if step.instance_profile is not None:
        request["IamInstanceProfile"] = {"Name": step.instance_profile}
    if option.market == "spot":
        # One-time: AWS does not launch it anew when it has ended it. What ended costs nothing more.
        spot: SpotMarketOptionsTypeDef = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
        request["TagSpecifications"] = [*request["TagSpecifications"], tag("spot-instances-request")]
    return request


def _network_interface(
    option: LaunchOption, *, group_id: str | None, public_address: bool
) -> InstanceNetworkInterfaceSpecificationTypeDef:
    interface: InstanceNetworkInterfaceSpecificationTypeDef = {
        "DeviceIndex": 0,
        "SubnetId": option.subnet_id,
        "AssociatePublicIpAddress": public_address,
        "DeleteOnTermination": True,
    }
    if group_id is not None:
        interface["Groups"] = [group_id]
    if option.efa:
        # One adapter, on the first network card: with more than one interface there is no public address.
        interface["InterfaceType"] = "efa"
    return interface


def request_digest(request: RunInstancesRequestTypeDef) -> str:
    """The same for the same request, in every process."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def call_run_instances(
    run_ec2: EC2Client, request: RunInstancesRequestTypeDef, *, client_token: str, report: Report
) -> ReservationResponseTypeDef:
    """Asks until AWS answers, always with the same ClientToken: however often, it launches once.

    run_ec2 must not retry by itself. Repeated: AWS being busy, lost connections, and what is too young to be
    known (group, key pair, placement group, instance profile); with jittered back-off, LAUNCH_ATTEMPTS times
    (the young: NOT_FOUND_TIMEOUT_S).
    Everything else is raised as boto3 raises it.
    """
    with_token: RunInstancesRequestTypeDef = {**request, "ClientToken": client_token}
    give_up_at = time.monotonic() + NOT_FOUND_TIMEOUT_S
    attempt = 0
    while True:
        attempt += 1
        try:
            return run_ec2.run_instances(**with_token)
        except (ClientError, ConnectTimeoutError, EndpointConnectionError, HTTPClientError) as error:
            if not _is_worth_repeating(error, attempt=attempt, waiting=time.monotonic() < give_up_at):
                raise
            words = aws_words(error) if isinstance(error, ClientError) else str(error)
            report(Event(kind="warn", what=f"launch not done yet, asking again: {words}"))
        ceiling_s = min(_FIRST_DELAY_S * 2 ** (attempt - 1), _LONGEST_DELAY_S)
        time.sleep(ceiling_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret


def _is_worth_repeating(error: ClientError | BotoCoreError, *, attempt: int, waiting: bool) -> bool:
    if isinstance(error, ClientError) and _is_not_yet_known(error):
        return waiting
    if isinstance(error, ClientError) and error_code(error) not in RETRY_CODES:
        return False
    return attempt < LAUNCH_ATTEMPTS


def _is_not_yet_known(error: ClientError) -> bool:
    """What was just made is not known everywhere at once; of an instance profile EC2 says so in words only."""
    if error_code(error) == "InvalidParameterValue":
        return "iaminstanceprofile" in str(error).lower()
    return error_code(error) in _NOT_YET_KNOWN


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
