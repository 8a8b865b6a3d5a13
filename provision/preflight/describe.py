"""Finds out, before anything is made, who asks, how the nodes can be launched and what is in the way. Only reads."""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime
from http.client import HTTPException
from ipaddress import AddressValueError, IPv4Address

from botocore.exceptions import ClientError

from foundation.errors import AwsError, ClusterError
from foundation.thread_pool import bounded_pool
from provision.aws.clients import Clients, aws_errors, error_code
from provision.config import ProvisionConfig, all_types, setting_error
from provision.model import Caller, ClusterState, LaunchOption, Permissions, Preflight
from provision.plan import Wanted
from provision.preflight.machines import describe_images, describe_offered_zones, describe_types, type_error
from provision.preflight.permissions import describe_permissions
from provision.preflight.places import Facts, describe_subnets, drop_over_quota, list_places
from provision.preflight.prices import PricedPlace, describe_prices, find_volume_price
from provision.preflight.quotas import describe_quotas

CHECKIP_URL = "https://checkip.amazonaws.com"
_CHECKIP_TIMEOUT_S = 10


def describe_caller(clients: Clients, config: ProvisionConfig) -> Caller:
    """The account and the identity of the credentials, and the network that may reach the nodes by ssh.

    Raises AwsError, or ClusterError when ssh_from is "auto" and this machine's address cannot be found.
    """
    with aws_errors("asking who we are"):
        identity = clients.sts.get_caller_identity()
    return Caller(
        region=clients.region,
        account_id=identity["Account"],
        owner=identity["Arn"],
        ssh_from=f"{find_caller_address()}/32" if config.ssh_from == "auto" else config.ssh_from,
    )


def find_caller_address() -> IPv4Address:
    """The address that this machine is seen with on the Internet, as checkip.amazonaws.com tells it.

    CLUSTER_CHECKIP_URL names another service of the kind, AWS_CA_BUNDLE further authorities to trust.
    Raises ClusterError when it cannot be had.
    """
    url = os.environ.get("CLUSTER_CHECKIP_URL") or CHECKIP_URL
    hint = 'say it yourself in cluster.toml: [provision] ssh_from = "ADDRESS/32"'
    if not url.startswith("https://"):
        raise ClusterError(f"CLUSTER_CHECKIP_URL is {url}: only https:// can be believed", hint=hint)
    try:
        context = ssl.create_default_context()
        if bundle := os.environ.get("AWS_CA_BUNDLE"):
            context.load_verify_locations(bundle)
        with urllib.request.urlopen(url, timeout=_CHECKIP_TIMEOUT_S, context=context) as reply:  # noqa: S310 - https
            text = reply.read(64).decode("ascii", errors="replace").strip()
        return IPv4Address(text)
    except AddressValueError as error:
        raise ClusterError(f"{url} did not answer with an IPv4 address but with {text!r}", hint=hint) from error
    except (OSError, HTTPException) as error:  # URLError, SSLError and timeouts are OSErrors
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ClusterError(f"cannot find the address of this machine: {url}: {reason}", hint=hint) from error


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
