"""Finds the ways to launch the nodes, and why not others: one subnet holds the whole cluster. Only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from foundation.errors import AwsError, ClusterError, ConfigError
from foundation.thread_pool import bounded_pool
from provision.aws.clients import Clients, aws_errors, aws_words, error_code
from provision.config import ProvisionConfig, all_types, setting_error
from provision.model import ClusterState, LaunchOption, Market, Permissions, Preflight, Quota
from provision.plan import Wanted
from provision.preflight.caller import describe_permissions
from provision.preflight.machines import (
    Image,
    TypeFacts,
    describe_images,
    describe_offered_zones,
    describe_types,
    type_error,
)
from provision.preflight.prices import PricedPlace, describe_prices, find_volume_price
from provision.preflight.quotas import describe_quotas, quota_error

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import SubnetTypeDef


def describe_preflight(clients: Clients, wanted: Wanted) -> Preflight:
    """How the missing nodes of the cluster, at least one, can be launched beside those that are there.

    Options come in the order market, type, zone, the zone changing fastest, and always in the same order for the same
    account. A cluster that has nodes keeps their subnet and their type.
    Raises ConfigError when a setting cannot be met (it names the key), AwsError when the account's limits or the
    caller's permissions do not allow the launch.
    """
    config, state, launching, least = wanted.config, wanted.state, len(wanted.missing), wanted.least_missing
    with aws_errors("checking what is to be launched"):
        places = list_places(config, _describe_facts(clients, config, state), least=max(least, 1))
        with bounded_pool() as pool:
            quotas_asked = pool.submit(describe_quotas, clients, places.options, launching=launching)
            rehearsed = replace(wanted, preflight=Preflight(options=places.options))
            permissions_asked = pool.submit(describe_permissions, clients, rehearsed)
            profile_asked = pool.submit(_refuse_unknown_profile, clients, config)
            prices_asked = pool.submit(describe_prices, clients, {_place(option) for option in places.options})
            volume_price_asked = pool.submit(find_volume_price, clients)
        profile_asked.result()
        permissions = permissions_asked.result()
        _refuse_missing(permissions)
        quotas = quotas_asked.result()
    kept = drop_over_quota(places, quotas, least=least, launching=launching)
    prices = prices_asked.result()
    used = ((option.market, option.instance_type) for option in kept.options)
    return Preflight(
        options=tuple(replace(option, usd_per_hour=prices[_place(option)]) for option in kept.options),
        skipped=kept.skipped,
        quotas=tuple(dict.fromkeys(quotas[place] for place in used if place in quotas)),
        permissions=permissions,
        public_address=config.ssh_address == "public",
        volume_usd_per_gib_month=volume_price_asked.result(),
    )


def _describe_facts(clients: Clients, config: ProvisionConfig, state: ClusterState) -> Facts:
    types = tuple(dict.fromkeys(node.instance_type for node in state.nodes)) or all_types(config)
    with bounded_pool() as pool:
        known_asked = pool.submit(describe_types, clients.ec2, config, types)
        zones_asked = pool.submit(describe_offered_zones, clients.ec2, types)
        subnets_asked = pool.submit(describe_subnets, clients.ec2, config, state)
    known = known_asked.result()
    for facts in known.values():
        if config.efa and not facts.efa:
            hint = "set efa = false, or take a type that has one, such as c5n.18xlarge or p4d.24xlarge"
            raise type_error(config, facts.name, "has no Elastic Fabric Adapter, and efa = true", hint=hint)
    images = describe_images(clients, config, known.values(), now=datetime.now(UTC))
    return Facts(
        types=known,
        zones=zones_asked.result(),
        images=images,
        subnets=subnets_asked.result(),
        settled=bool(state.nodes),
    )


def _place(option: LaunchOption) -> PricedPlace:
    return (option.market, option.instance_type, option.zone)


def _refuse_unknown_profile(clients: Clients, config: ProvisionConfig) -> None:
    """Raises ConfigError when the instance profile that is named is not there; who may not look goes on."""
    if config.instance_profile in {"none", "auto"}:
        return
    try:
        clients.iam.get_instance_profile(InstanceProfileName=config.instance_profile)
    except ClientError as error:
        if error_code(error) == "NoSuchEntity":
            hint = 'set instance_profile to "none", "auto" or one of: aws iam list-instance-profiles'
            problem = "the account has no such instance profile"
            raise setting_error(config, "instance_profile", problem, hint=hint) from error
        if error_code(error) != "AccessDenied":
            raise


def _refuse_missing(permissions: Permissions) -> None:
    """Raises AwsError that lists all permissions that are known to be missing."""
    if permissions.missing:
        raise AwsError(
            "these credentials lack permissions that `cluster up` and `cluster down` need, and nothing was made: "
            + ", ".join(permissions.missing),
            hint="show whoever runs the account what is needed: cluster iam-policy",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Subnet:
    """A subnet. free_addresses: how many more instances it has room for."""

    subnet_id: str
    vpc_id: str
    zone: str
    free_addresses: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What AWS said. types: in the order in which they are tried; zones: that offer a type; images: of a type.

    subnets: by zone. All but subnets go by the type's name. settled: the cluster has nodes, in the one subnet there is.
    """

    types: Mapping[str, TypeFacts]
    zones: Mapping[str, frozenset[str]]
    images: Mapping[str, Image]
    subnets: tuple[Subnet, ...]
    settled: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """options: ways to launch, in the order in which they are tried; skipped: why others are not, in words."""

    options: tuple[LaunchOption, ...]
    skipped: tuple[str, ...]


def describe_subnets(ec2: EC2Client, config: ProvisionConfig, state: ClusterState) -> tuple[Subnet, ...]:
    """The one that the cluster's nodes are in, else the one asked for, else the default subnets; by zone.

    Always in the same order for the same account, so that a repeated launch is the same request; never empty.
    Raises ConfigError, AwsError, and boto3's errors.
    """
    of_nodes = {node.subnet_id for node in state.nodes if node.subnet_id}
    if of_nodes:
        found = ec2.describe_subnets(SubnetIds=[min(of_nodes)])["Subnets"]
    elif config.subnet_id != "auto":
        found = _describe_named(ec2, config)
    else:
        found = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
        if not found:
            raise AwsError(
                f"{config.region} has no default subnet in this account",
                hint="name one in cluster.toml ([provision] subnet_id), or make one: aws ec2 create-default-vpc",
            )
    subnets = (
        Subnet(
            subnet_id=subnet["SubnetId"],
            vpc_id=subnet["VpcId"],
            zone=subnet["AvailabilityZone"],
            free_addresses=subnet["AvailableIpAddressCount"],
        )
        for subnet in found
    )
    return tuple(sorted(subnets, key=lambda subnet: (subnet.zone, subnet.subnet_id)))


def _describe_named(ec2: EC2Client, config: ProvisionConfig) -> list[SubnetTypeDef]:
    try:
        found = ec2.describe_subnets(SubnetIds=[config.subnet_id])["Subnets"]
    except ClientError as error:
        if error_code(error) not in {"InvalidSubnetID.NotFound", "InvalidSubnetID.Malformed"}:
            raise
        raise _no_such_subnet(config, f"AWS says: {aws_words(error)}: ") from error
    if not found:
        raise _no_such_subnet(config, "")
    return found


def _no_such_subnet(config: ProvisionConfig, words: str) -> ConfigError:
    problem = f"{words}{config.region} has no such subnet"
    return setting_error(config, "subnet_id", problem, hint='set subnet_id = "auto" in cluster.toml, or correct region')


def list_places(config: ProvisionConfig, facts: Facts, *, least: int) -> Places:
    """Every market, type and zone where the type is offered and the subnet has room; the zone changes fastest.

    least: for how many nodes there must be free addresses, at least 1.
    Pure. Raises ConfigError or AwsError when no way is left.
    """
    skipped: list[str] = []
    types = _find_offered(config, facts, skipped)
    roomy = _find_roomy(config, facts, types, skipped, least=least)
    options: list[LaunchOption] = []
    for market in config.market:
        for name in types:
            if market == "spot" and not facts.types[name].on_spot:
                skipped.append(f"{name} is not sold on spot")
                continue
            options += [
                _make_option(config, facts, name, market=market, subnet=subnet)
                for subnet in roomy
                if subnet.zone in facts.zones[name]
            ]
    if not options:
        raise setting_error(
            config, "market", "; ".join(skipped), hint='set market = "on-demand", or take another instance_type'
        )
    return Places(options=tuple(options), skipped=tuple(skipped))


def drop_over_quota(
    places: Places, quotas: Mapping[tuple[Market, str], Quota], *, least: int, launching: int
) -> Places:
    """Without the options whose quota has no room even for `least` nodes, or for one. Unknown is not in the way.

    quotas: by market and type, their `needed` for `launching` nodes. When no option is left, all stay if the cluster
    can do without these nodes, `least` being 0: AWS then says no, and the cluster goes on with the nodes it has.
    Else raises AwsError.
    """
    over: dict[str, Quota] = {}
    options: list[LaunchOption] = []
    for option in places.options:
        quota = quotas.get((option.market, option.instance_type))
        fewest = replace(quota, needed=option.vcpus * max(least, 1)) if quota is not None else None
        if quota is None or fewest is None or fewest.suffices:
            options.append(option)
            continue
        room = max(int(quota.limit or 0) - (quota.in_use or 0), 0)
        where = f"{option.instance_type} {'on spot' if option.market == 'spot' else 'on demand'}"
        over[f"{where}: the quota {quota.code} has room for {room} vCPUs, {fewest.needed} are needed"] = quota
    if not options and least == 0:
        return places
    if not options:
        raise quota_error(over.values(), least=least, launching=launching)
    return replace(places, options=tuple(options), skipped=(*places.skipped, *over))


def _find_offered(config: ProvisionConfig, facts: Facts, skipped: list[str]) -> tuple[str, ...]:
    """The types that are offered where there is a subnet; notes the others, and the zones without them."""
    here = [subnet.zone for subnet in facts.subnets]
    offered: list[str] = []
    for name in facts.types:
        lacking = [zone for zone in dict.fromkeys(here) if zone not in facts.zones[name]]
        if lacking:
            skipped.append(f"{name} is not offered in {', '.join(lacking)}")
        if len(lacking) < len(set(here)):
            offered.append(name)
    if not offered:
        raise _not_offered(config, facts)
    return tuple(offered)


def _not_offered(config: ProvisionConfig, facts: Facts) -> ClusterError:
    name = next(iter(facts.types))
    zones = ", ".join(sorted(facts.zones[name])) or "no zone"
    if facts.settled:
        subnet = facts.subnets[0]
        return ClusterError(
            f"the cluster's nodes are in {subnet.subnet_id} ({subnet.zone}), where AWS does not offer {name} any more",
            hint="cluster down, then cluster up: all nodes are in one subnet",
        )
    if config.subnet_id != "auto":
        problem = f"is in {facts.subnets[0].zone}, which does not offer {', '.join(facts.types)}"
        return setting_error(config, "subnet_id", problem, hint=f"{name} is offered in: {zones}")
    problem = f"offered in {zones} only, where no default subnet is"
    return type_error(config, name, problem, hint="take another type, or name a subnet: [provision] subnet_id")


def _find_roomy(
    config: ProvisionConfig, facts: Facts, types: Sequence[str], skipped: list[str], *, least: int
) -> tuple[Subnet, ...]:
    """The subnets with enough free addresses; notes those without."""
    serving = [subnet for subnet in facts.subnets if any(subnet.zone in facts.zones[name] for name in types)]
    roomy: list[Subnet] = []
    for subnet in serving:
        if subnet.free_addresses >= least:
            roomy.append(subnet)
            continue
        addresses = "address" if subnet.free_addresses == 1 else "addresses"
        are = "is" if least == 1 else "are"
        skipped.append(
            f"{subnet.zone}: {subnet.subnet_id} has {subnet.free_addresses} free {addresses}, {least} {are} needed"
        )
    if roomy:
        return tuple(roomy)
    if facts.settled:
        raise AwsError(
            f"the cluster's subnet is full: {'; '.join(skipped)}",
            hint="ask for fewer nodes, or cluster down, then cluster up in a larger one: [provision] subnet_id",
        )
    if config.subnet_id != "auto":
        problem = f"has {serving[0].free_addresses} free addresses, {least} needed"
        raise setting_error(config, "subnet_id", problem, hint='name a larger one, or set subnet_id = "auto"')
    raise AwsError(
        f"no default subnet of {config.region} has {least} free addresses: {'; '.join(skipped)}",
        hint="name a larger one in cluster.toml: [provision] subnet_id",
    )


def _make_option(config: ProvisionConfig, facts: Facts, name: str, *, market: Market, subnet: Subnet) -> LaunchOption:
    known, image = facts.types[name], facts.images[name]
    return LaunchOption(
        market=market,
        instance_type=name,
        architecture=known.architecture,
        vcpus=known.vcpus,
        gpus=known.gpus,
        image_id=image.image_id,
        image_name=image.name,
        image_created_at=image.created_at,
        root_device=image.root_device,
        subnet_id=subnet.subnet_id,
        vpc_id=subnet.vpc_id,
        zone=subnet.zone,
        free_addresses=subnet.free_addresses,
        placement=config.placement_group == "auto" and config.nodes > 1 and known.in_cluster_placement,
        efa=config.efa,
    )
