"""The caller's identity, address and permissions.

Permissions are tested with EC2's dry runs, which have no effect: EC2 returns DryRunOperation if the caller is allowed,
else UnauthorizedOperation (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/CommonParameters.html, DryRun).

The resources that `down` will delete do not exist yet, so its dry runs name stand-ins, which cannot exist. If one is
refused, the permission is missing or depends on tags, which a stand-in does not have. If all of them are refused, this
module assumes that the permissions depend on tags.
"""

from __future__ import annotations

import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from ipaddress import AddressValueError, IPv4Address
from typing import Literal

from botocore.exceptions import ClientError

from foundation.errors import AwsError, ClusterError
from foundation.thread_pool import bounded_pool
from provision.aws.clients import Clients, aws_errors, error_code
from provision.aws.error_hints import find_named_action
from provision.config import ProvisionConfig
from provision.model import Caller, Permissions, federated_name
from provision.plan import Wanted
from provision.resources.resource import DryRun
from provision.resources.table import HEAD_KINDS, KINDS

CHECKIP_URL = "https://checkip.amazonaws.com"
_CHECKIP_TIMEOUT_S = 10

Verdict = Literal["allowed", "missing", "unknown"]

_ACCOUNT_STATES = frozenset({"Blocked", "OptInRequired", "PendingVerification"})
"""Codes for an account that cannot launch anything in its current state."""

_ON_GROUP = re.compile(r"on resource: \S+:security-group/")

_FEDERATE = "sts:GetFederationToken"
_NOTHING = '{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Action":"*","Resource":"*"}]}'


def describe_caller(clients: Clients, config: ProvisionConfig, *, ssh_from: str | None = None) -> Caller:
    """Returns the account and identity of the credentials, and the network that may reach the nodes by ssh.

    ssh_from: that network, if it is not [provision] ssh_from. Raises AwsError. Raises ClusterError when the network is
    "auto" and this machine's address cannot be found.
    """
    asked = config.ssh_from if ssh_from is None else ssh_from
    with aws_errors("looking up the caller's identity"):
        identity = clients.sts.get_caller_identity()
    return Caller(
        region=clients.region,
        account_id=identity["Account"],
        owner=identity["Arn"],
        ssh_from=f"{find_caller_address()}/32" if asked == "auto" else asked,
    )


def find_caller_address() -> IPv4Address:
    """Returns this machine's public address, from checkip.amazonaws.com.

    CLUSTER_CHECKIP_URL selects another such service, AWS_CA_BUNDLE further authorities to trust. Raises ClusterError.
    """
    url = os.environ.get("CLUSTER_CHECKIP_URL") or CHECKIP_URL
    hint = 'set it in cluster.toml: [provision] ssh_from = "ADDRESS/32"'
    if not url.startswith("https://"):
        raise ClusterError(f"CLUSTER_CHECKIP_URL is {url}: must be https://", hint=hint)
    try:
        context = ssl.create_default_context()
        if bundle := os.environ.get("AWS_CA_BUNDLE"):
            context.load_verify_locations(bundle)
        with urllib.request.urlopen(url, timeout=_CHECKIP_TIMEOUT_S, context=context) as reply:  # noqa: S310 - https
            text = reply.read(64).decode("ascii", errors="replace").strip()
        return IPv4Address(text)
    except AddressValueError as error:
        raise ClusterError(f"{url} answered {text!r}, which is not an IPv4 address", hint=hint) from error
    except (OSError, HTTPException) as error:  # URLError, SSLError and timeouts are OSErrors
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ClusterError(f"cannot find the address of this machine: {url}: {reason}", hint=hint) from error


# --- permissions


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """The result of a dry run. refused: the action that AWS named. ambiguous: the refusal may be about a stand-in."""

    dry_run: DryRun
    allowed: bool = False
    refused: str | None = None
    ambiguous: bool = False


def describe_permissions(clients: Clients, wanted: Wanted) -> Permissions:
    """Returns the caller's permissions to launch the missing nodes and to delete the cluster.

    Tests the first way to launch in wanted.preflight. Raises boto3's errors, also for an account that cannot launch.
    """
    config, caller = wanted.config, wanted.caller
    kinds = [kind.dry_runs for kind in (KINDS if wanted.from_head is None else HEAD_KINDS) if kind.dry_runs is not None]
    dry_runs = [dry_run for rehearse in kinds for dry_run in rehearse(clients.ec2, wanted)]
    with bounded_pool() as pool:
        asked = [pool.submit(_attempt, dry_run) for dry_run in dry_runs]
        # Only users request limited credentials with this call; roles have other ways.
        is_asked = config.instance_profile == "none" and ":user/" in caller.owner
        limited = pool.submit(_may_limit_jobs, clients, wanted.name) if is_asked else None
    verdicts = judge([answer.result() for answer in asked])
    by_verdict: dict[Verdict, list[str]] = {"allowed": [], "missing": [], "unknown": []}
    for action, verdict in sorted(verdicts.items()):
        by_verdict[verdict].append(action)
    return Permissions(
        **{verdict: tuple(actions) for verdict, actions in by_verdict.items()},
        without=() if limited is None or limited.result() else (_FEDERATE,),
    )


def _attempt(dry_run: DryRun) -> _Answer:
    """Sends a dry run. The only function that does so, always with DryRun set."""
    try:
        dry_run.call(**{**dry_run.request, "DryRun": True})
    except ClientError as error:
        code, words = error_code(error), str(error)
        if code in _ACCOUNT_STATES:
            raise
        if code == "DryRunOperation":
            return _Answer(dry_run=dry_run, allowed=True)
        if code != "UnauthorizedOperation":
            return _Answer(dry_run=dry_run)
        # A launch without a group uses the VPC's default group, which is also a stand-in.
        default_group = dry_run.action == "ec2:RunInstances" and not _names_group(dry_run) and _ON_GROUP.search(words)
        return _Answer(
            dry_run=dry_run,
            refused=find_named_action(words) or dry_run.action,
            ambiguous=bool(dry_run.stands_in or default_group) and "explicit deny" not in words,
        )
    raise AwsError(
        f"{dry_run.action} was a dry run, but the service carried it out",
        hint="this is not AWS's EC2: check AWS_ENDPOINT_URL, and what was made there",
    )


def _may_limit_jobs(clients: Clients, name: str) -> bool:
    """Returns whether the caller may request limited credentials for jobs, by requesting some without permissions.

    If not, `up` continues, and `cluster train` warns.
    """
    try:
        clients.sts.get_federation_token(Name=federated_name(name), Policy=_NOTHING, DurationSeconds=900)
    except ClientError as error:
        if error_code(error) != "AccessDenied":
            raise
        return False
    return True


def _names_group(dry_run: DryRun) -> bool:
    return any("Groups" in interface for interface in dry_run.request["NetworkInterfaces"])


def judge(answers: Sequence[_Answer]) -> dict[str, Verdict]:
    """Returns the verdict on each action; `missing` overrides the others. Pure."""
    tags_decide = not any(answer.allowed for answer in answers if answer.dry_run.stands_in)
    found: dict[Verdict, list[str]] = {"unknown": [], "allowed": [], "missing": []}  # later ones override earlier ones
    for answer in answers:
        if answer.allowed:
            found["allowed"] += [answer.dry_run.action, *answer.dry_run.also]
            continue
        found["unknown"].append(answer.dry_run.action)
        if answer.refused is not None and not (answer.ambiguous and (tags_decide or not answer.dry_run.stands_in)):
            found["missing"].append(answer.refused)
    return {action: verdict for verdict, actions in found.items() for action in actions}
