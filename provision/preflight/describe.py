"""Finds out, before anything is made, how the nodes can be launched and what is in the way. Only reads."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from botocore.exceptions import ClientError

from provision.aws import Clients, aws_errors, error_code
from provision.config import ProvisionConfig, all_types, setting_error
from provision.errors import AwsError
from provision.model import Caller, ClusterState, LaunchOption, Permissions, Preflight
from provision.preflight.images import describe_images
from provision.preflight.instance_types import describe_offered_zones, describe_types, type_error
from provision.preflight.permissions import describe_permissions
from provision.preflight.places import Facts, drop_over_quota, list_places
from provision.preflight.prices import PricedPlace, describe_prices, find_volume_price
from provision.preflight.quotas import describe_quotas
from provision.preflight.subnets import describe_subnets
from provision.side_by_side import reading_pool


def describe_preflight(
    clients: Clients,
    *,
    config: ProvisionConfig,
    state: ClusterState,
    caller: Caller,
    name: str,
    missing: tuple[int, ...],
    least: int,
) -> Preflight:
    """How the missing nodes of the cluster `name` can be launched beside those of `state`.

    missing: their indices, at least one; least: how many of them are good enough, 0 when the cluster can do without.
    Options come in the order market, type, zone, the zone changing fastest, and always in the same order for the same
    account. A cluster that has nodes keeps their subnet and their type.
    Raises ConfigError when a setting cannot be met (it names the key), AwsError when the account's limits or the
    caller's permissions do not allow the launch.
    """
    fewest = max(least, 1)
    with aws_errors("checking what is to be launched"):
        places = list_places(config, _describe_facts(clients, config, state), least=fewest)
        with reading_pool() as pool:
            quotas_asked = pool.submit(describe_quotas, clients, places.options, launching=len(missing))
            permissions_asked = pool.submit(
                describe_permissions,
                clients,
                config=config,
                state=state,
                caller=caller,
                name=name,
                missing=missing,
                options=places.options,
            )
            profile_asked = pool.submit(_refuse_unknown_profile, clients, config)
            prices_asked = pool.submit(describe_prices, clients, {_place(option) for option in places.options})
            volume_price_asked = pool.submit(find_volume_price, clients)
        profile_asked.result()
        permissions = permissions_asked.result()
        _refuse_missing(permissions)
        quotas = quotas_asked.result()
    kept = drop_over_quota(places, quotas, least=least, launching=len(missing))
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
    with reading_pool() as pool:
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
