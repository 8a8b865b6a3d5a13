"""vCPU quotas: how many vCPUs the account may run, how many are running, and how many a launch needs.

AWS counts vCPUs by kinds of instance families, separately for on-demand and spot, in each region:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-on-demand-instances.html#ec2-on-demand-instances-limits and
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-spot-limits.html have the kinds and their names,
https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html has the codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from re import compile as regex
from typing import TYPE_CHECKING, NamedTuple

from botocore.exceptions import ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NoConnectionError

from foundation.errors import QuotaError
from foundation.thread_pool import bounded_pool
from provision.aws.clients import Clients, error_code
from provision.describe import find_instances
from provision.model import LaunchOption, Market, Quota, count
from provision.preflight.machines import list_types

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef

_STANDARD = ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z")
"""Im4gn and Is4gen belong to the I family (https://aws.amazon.com/ec2/instance-types/i4g/)."""
_GRAPHICS = ("g", "gr", "vt")
_FAMILY = regex(r"([a-z]+)([0-9]*)")


class QuotaKind(NamedTuple):
    """The instance types that one quota covers. letters: of the families' names; generations: () for all."""

    code: str
    name: str
    market: Market
    letters: tuple[str, ...]
    generations: tuple[str, ...] = ()


_STANDARD_NAME = "Standard (A, C, D, H, I, M, R, T, Z)"
QUOTA_KINDS: tuple[QuotaKind, ...] = (
    QuotaKind("L-1216C47A", f"Running On-Demand {_STANDARD_NAME} instances", "on-demand", _STANDARD),
    QuotaKind("L-DB2E81BA", "Running On-Demand G and VT instances", "on-demand", _GRAPHICS),
    QuotaKind("L-417A185B", "Running On-Demand P instances", "on-demand", ("p",)),
    QuotaKind("L-34B43A08", f"All {_STANDARD_NAME} Spot Instance Requests", "spot", _STANDARD),
    QuotaKind("L-3819A6DF", "All G and VT Spot Instance Requests", "spot", _GRAPHICS),
    QuotaKind("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests", "spot", ("p",), ("2", "3", "4")),
    QuotaKind("L-C4BD4855", "All P5 Spot Instance Requests", "spot", ("p",), ("5",)),
)
"""The kinds that this program checks. Other families (inf, trn, dl, f, x, u, hpc, P6 on spot) have other quotas."""


def find_quota_kind(instance_type: str, market: Market) -> QuotaKind | None:
    """Returns the quota of a type such as "g5.xlarge"; None if this program does not know it. Pure."""
    named = _FAMILY.match(instance_type)
    if named is None:
        return None
    letters, generation = named.groups()
    return next(
        (
            kind
            for kind in QUOTA_KINDS
            if kind.market == market
            and letters in kind.letters
            and (not kind.generations or generation in kind.generations)
        ),
        None,
    )


def describe_quotas(
    clients: Clients, options: Sequence[LaunchOption], *, launching: int
) -> Mapping[tuple[Market, str], Quota]:
    """Returns the quota of each market and type of the options, if this program knows it.

    launching: the number of nodes. Raises boto3's errors when the account's instances cannot be listed. An unknown
    limit is part of the result.
    """
    wanted: dict[tuple[Market, str], tuple[QuotaKind, int]] = {}
    for option in options:
        kind = find_quota_kind(option.instance_type, option.market)
        if kind is not None:
            wanted[option.market, option.instance_type] = (kind, option.vcpus * launching)
    if not wanted:
        return {}
    kinds = tuple(dict.fromkeys(kind for kind, _ in wanted.values()))

    with bounded_pool() as pool:
        found = {kind.code: pool.submit(_find_limit, clients, kind.code) for kind in kinds}
        counted = pool.submit(_count_in_use, clients.ec2, kinds)
    in_use = counted.result()
    quotas: dict[tuple[Market, str], Quota] = {}
    for place, (kind, needed) in wanted.items():
        known, unknown = found[kind.code].result()
        quotas[place] = Quota(
            code=kind.code, name=kind.name, region=clients.region, needed=needed,
            limit=known, in_use=in_use[kind.code], unknown=unknown,
        )  # fmt: skip
    return quotas


def quota_error(quotas: Iterable[Quota], *, nodes: int) -> QuotaError:
    """Returns the error when no way to launch so many nodes fits the account's quotas. Pure."""
    # Of several types, the one that needs least.
    distinct = {quota.code: quota for quota in sorted(quotas, key=lambda quota: -quota.needed)}.values()
    lines = [f"  {line}" for line in map(render_quota, distinct)]
    commands = (
        "aws service-quotas request-service-quota-increase --service-code ec2 "
        f"--quota-code {quota.code} --desired-value {(quota.in_use or 0) + quota.needed} --region {quota.region}"
        for quota in distinct
    )
    return QuotaError(
        "\n".join([f"the account's quotas do not allow {count(nodes, 'node')}:", *lines]),
        hint=f"reduce or change [provision] nodes, instance_type or market, or request a higher limit: "
        f"{' or '.join(commands)}",
    )


def render_quota(quota: Quota) -> str:
    """Renders a quota in one line. Pure."""
    in_use = "unknown" if quota.in_use is None else str(quota.in_use)
    limit = f"unknown ({quota.unknown})" if quota.limit is None else f"{quota.limit:g}"
    return f"{quota.code} {quota.name}: {quota.needed} vCPUs needed, {in_use} in use, limit {limit}"


# --- limits


def _find_limit(clients: Clients, code: str) -> tuple[float | None, str | None]:
    """Returns the limit in vCPUs, and the reason if it is unknown."""
    quotas = clients.service_quotas
    try:
        return quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"], None
    except ClientError as error:
        return None, f"Service Quotas says {error_code(error)}"
    except (NoConnectionError, HTTPClientError):
        return None, "Service Quotas cannot be reached"


# --- use


def _count_in_use(ec2: EC2Client, kinds: Sequence[QuotaKind]) -> dict[str, int]:
    """Counts the vCPUs of the account's pending and running instances, by the quota's code."""
    live: FilterTypeDef = {"Name": "instance-state-name", "Values": ["pending", "running"]}
    running = Counter((each.instance_type, each.market) for each in find_instances(ec2, live))
    counted = {place: kind for place in running if (kind := find_quota_kind(*place)) in kinds and kind is not None}
    vcpus = list_types(ec2, {instance_type for instance_type, _ in counted}) if counted else {}
    in_use = dict.fromkeys((kind.code for kind in kinds), 0)
    for place, kind in counted.items():
        in_use[kind.code] += running[place] * vcpus[place[0]]["VCpuInfo"]["DefaultVCpus"]
    return in_use
