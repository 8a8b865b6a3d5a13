"""Finds the ways to launch the nodes, and why others are impossible. All nodes are in one subnet. Only reads."""

from collections.abc import Iterable, Mapping
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from foundation.errors import AwsError, ClusterError, NotInRegionError
from foundation.thread_pool import bounded_pool
from provision.aws.clients import Clients, aws_errors
from provision.config import ProvisionConfig, all_types, setting_error
from provision.model import ClusterState, LaunchOption, Market, Permissions, Preflight, Quota
from provision.plan import Request, World
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
from provision.preflight.quotas import describe_quotas, quota_error, render_quota
from provision.preflight.reservations import Reservation, find_reservation
from provision.preflight.subnets import REMEDY, Subnet, describe_subnets, no_default_subnet
from provision.resources.shared_volume import SHARED_VOLUME, choose_volume
from provision.volumes.describe import describe_planned_mounts


def describe_preflight(clients: Clients, world: World) -> Preflight:
    """Returns the ways to launch the missing nodes of the cluster: at least one.

    Options are ordered by market, type and zone, always in the same order for the same account. New nodes get the type
    and the subnet of existing ones. Raises ConfigError, with the setting's name, for a setting that AWS cannot satisfy.
    Raises AwsError when the account's quotas or the caller's permissions do not allow the launch.
    """
    config, least = world.request.config, world.least_missing
    with aws_errors("checking the launch"):
        facts, skipped = keep_volume_zone(world, _describe_facts(clients, world.request, world.state))
        places = list_locations(config, facts, least=max(least, 1))
        places = replace(places, skipped=(*places.skipped, *skipped))
        with bounded_pool() as pool:
            quotas_asked = pool.submit(describe_quotas, clients, places.options, launching=max(least, 1))
            permissions_asked = pool.submit(describe_permissions, clients, replace(world, preflight=places))
            prices_asked = pool.submit(describe_prices, clients, {_place(option) for option in places.options})
            volume_price_asked = pool.submit(find_volume_price, clients)
            mounts_asked = pool.submit(describe_planned_mounts, clients, world)
        permissions = permissions_asked.result()
        _refuse_missing(permissions)
        quotas = quotas_asked.result()
        mounts = mounts_asked.result()
    kept = drop_over_quota(places, quotas, least=least)
    prices = prices_asked.result()
    used = ((option.market, option.instance_type) for option in kept.options if option.reservation is None)
    return replace(
        kept,
        options=tuple(
            # A Capacity Block is paid in advance.
            replace(option, usd_per_hour=0.0 if option.is_block else prices[_place(option)])
            for option in kept.options
        ),
        quotas=tuple(dict.fromkeys(quotas[place] for place in used if place in quotas)),
        permissions=permissions,
        volume_usd_per_gib_month=volume_price_asked.result(),
        mounts=mounts,
    )


def _describe_facts(clients: Clients, request: Request, state: ClusterState) -> "Facts":
    config = request.config
    types = tuple(dict.fromkeys(node.instance_type for node in state.nodes)) or all_types(config)
    with bounded_pool() as pool:
        known_asked = pool.submit(describe_types, clients.ec2, config, types)
        zones_asked = pool.submit(describe_offered_zones, clients.ec2, types)
        subnets_asked = pool.submit(describe_subnets, clients.ec2, config, state)
        reservation_asked = pool.submit(find_reservation, clients.ec2, config)
        known = known_asked.result()
        images_asked = pool.submit(describe_images, clients, request, known.values())
    for facts in known.values():
        if config.efa and not facts.efa:
            hint = "set efa = false, or use a type that supports it, such as c5n.18xlarge or p4d.24xlarge"
            raise type_error(config, facts.name, "does not support efa = true", hint=hint)
    zones, subnets = zones_asked.result(), subnets_asked.result()
    if not subnets:
        raise no_default_subnet(config)
    return Facts(
        types=known,
        zones=zones,
        images=images_asked.result(),
        subnets=subnets,
        reservation=reservation_asked.result(),
    )


def keep_volume_zone(world: World, facts: "Facts") -> "tuple[Facts, tuple[str, ...]]":
    """Keeps only the subnets in the zone of the head's existing volume. Pure.

    Returns the facts, and why the other zones are skipped. Raises ConfigError if the zone has no subnet,
    and the errors of choose_volume.
    """
    volume = choose_volume(world)
    if volume is None:
        return facts, ()
    here = tuple(subnet for subnet in facts.subnets if subnet.zone == volume.zone)
    others = ", ".join(dict.fromkeys(subnet.zone for subnet in facts.subnets if subnet.zone != volume.zone))
    is_in = f"the cluster's volume {volume.volume_id} is in {volume.zone}"
    if not here:
        delete = SHARED_VOLUME.render_deletion(volume.volume_id, region=world.request.config.region)
        hint = f"set a subnet of {volume.zone}; or, if you do not need what is stored there: {delete}"
        raise setting_error(world.request.config, "subnet_id", f"{is_in}, not in {others}", hint=hint)
    return replace(facts, subnets=here), (f"{others}: {is_in}",) if others else ()


def _place(option: LaunchOption) -> PricedPlace:
    return (option.market, option.instance_type, option.zone)


def _refuse_missing(permissions: Permissions) -> None:
    """Raises AwsError with all missing permissions."""
    if permissions.missing:
        raise AwsError(
            "nothing was made: these credentials lack permissions that `cluster up` and `cluster down` need: "
            + ", ".join(permissions.missing),
            hint="ask the account's administrator; cluster iam-policy prints all that are needed; a policy that denies "
            "a launch may require tags: [provision] tags",
        )


class Facts(Struct, frozen=True, kw_only=True):
    """The facts from AWS about types, images and subnets.

    By the type's name: types, in the order in which they are tried; zones that offer a type; images for a type.
    subnets: sorted by zone. reservation: None if this region does not have one.
    """

    types: Mapping[str, TypeFacts]
    zones: Mapping[str, frozenset[str]]
    images: Mapping[str, Image]
    subnets: tuple[Subnet, ...]
    reservation: Reservation | None = None


def list_locations(config: ProvisionConfig, facts: Facts, *, least: int) -> Preflight:
    """Lists every market, type and zone where the zone offers the type and a subnet can have nodes. Pure.

    The reservation comes first if it has room for `least` nodes, since its price is the one that is shown; then the
    markets; the zone varies fastest. Raises ConfigError or AwsError when no way is possible.
    """
    options, full = _list_in_reservation(config, facts, least=least)
    skipped = dict.fromkeys(filter(None, [full]))
    for market, name, subnet in product(config.market, facts.types, facts.subnets):
        why = _find_obstacle(facts, market, name, subnet)
        if why is None:
            options += [_make_option(config, facts, name, market=market, subnet=subnet)]
        else:
            skipped[why] = None
    if not options:
        raise _no_location(config, facts, skipped)
    return Preflight(options=tuple(options), skipped=tuple(skipped))


def _find_obstacle(facts: Facts, market: Market, name: str, subnet: Subnet) -> str | None:
    """Returns why a type cannot be launched on a market in a subnet; None if it can."""
    if subnet.zone not in facts.zones[name]:
        lacking = (each.zone for each in facts.subnets if each.zone not in facts.zones[name])
        return f"{name} is not offered in {', '.join(dict.fromkeys(lacking))}"
    if subnet.obstacle is not None:
        return f"{subnet.zone}: {subnet.subnet_id} {subnet.obstacle}"
    return f"{name} is not available on spot" if market == "spot" and not facts.types[name].on_spot else None


def _no_location(config: ProvisionConfig, facts: Facts, skipped: Iterable[str]) -> ClusterError:
    """Returns the error if nothing is possible. skipped: see Preflight."""
    name, offered = next(iter(facts.types)), frozenset[str]().union(*facts.zones.values())
    obstacles = [subnet.obstacle for subnet in facts.subnets if subnet.zone in offered]
    if not obstacles:
        problem = f"only offered in {', '.join(sorted(facts.zones[name])) or 'no zone'}, without a subnet for the nodes"
        wrong = type_error(config, name, problem, hint="use another type, or another [provision] subnet_id")
        return NotInRegionError(wrong.message, hint=wrong.hint)
    if None in obstacles:
        hint = 'set market = "on-demand", or another instance_type'
        return setting_error(config, "market", "; ".join(skipped), hint=hint)
    if config.subnet_id != "auto":
        return setting_error(config, "subnet_id", obstacles[0] or "", hint=f'set subnet_id = "auto"; or {REMEDY}')
    return AwsError(
        f"no default subnet of {config.region} can have the nodes: {'; '.join(skipped)}",
        hint=f"in [provision] of cluster.toml: {REMEDY}",
    )


def _list_in_reservation(config: ProvisionConfig, facts: Facts, *, least: int) -> tuple[list[LaunchOption], str | None]:
    """Returns the ways to launch in the reservation; without any, why."""
    found = facts.reservation
    if config.reservation == "none":
        return [], None
    if found is None:
        return [], f"{config.region} does not have reservation {config.reservation}"
    name, free = found.instance_type, found.free if found.state == "active" else 0
    subnets = [
        subnet
        for subnet in facts.subnets  # whether its zone offers the type to others or not
        if free >= least and name in facts.types and (subnet.zone, subnet.obstacle) == (found.zone, None)
    ]
    # A cluster placement group only accepts reservations that were created for it.
    of_it = {"reservation": found.reservation_id, "is_block": found.is_block, "placement": False}
    options = [
        replace(_make_option(config, facts, name, market="on-demand", subnet=subnet), **of_it) for subnet in subnets
    ]
    if options:
        return options, None
    what = f"it is {found.state}, for {name} in {found.zone}, with room for {found.free}"
    return [], f"reservation {found.reservation_id}: {what}"


def drop_over_quota(places: Preflight, quotas: Mapping[tuple[Market, str], Quota], *, least: int) -> Preflight:
    """Removes the options whose quota is too low. Keeps those with an unknown limit.

    quotas: by market and type, for `least` nodes. Raises AwsError if no option is left. But if `least` is 0, keeps all
    options: AWS then refuses the launch, and `up` continues without these nodes.
    """
    over: dict[str, Quota] = {}
    options: list[LaunchOption] = []
    for option in places.options:
        quota = quotas.get((option.market, option.instance_type)) if option.reservation is None else None
        if quota is None or quota.suffices:
            options.append(option)
        else:
            over[f"{option.instance_type} {option.how}: {render_quota(quota)}"] = quota
    if not options and least == 0:
        return places
    if not options:
        raise quota_error(over.values(), nodes=least)
    return replace(places, options=tuple(options), skipped=(*places.skipped, *over))


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
