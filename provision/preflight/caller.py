"""Who is calling, from where, and what they may do: EC2's dry runs tell before anything is made.

A dry run has no effect; EC2 answers DryRunOperation when the caller may do it, else UnauthorizedOperation
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/CommonParameters.html, DryRun).

What `down` will delete is not there yet: its dry runs name stand-ins, which cannot exist. One that is refused means
that the permission is missing, or that it goes by tags, which a stand-in has none of. The second is taken for so when
all that name stand-ins are refused.
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
from provision.config import ProvisionConfig
from provision.model import Caller, Permissions, federated_name
from provision.plan import Wanted
from provision.resources.resource import DryRun
from provision.resources.table import KINDS

CHECKIP_URL = "https://checkip.amazonaws.com"
_CHECKIP_TIMEOUT_S = 10

Verdict = Literal["allowed", "missing", "unknown"]

_ACCOUNT_STATES = frozenset({"Blocked", "OptInRequired", "PendingVerification"})
"""Codes that say that the account cannot be used as it is: no launch would succeed."""

_PERFORM = re.compile(r"perform: (\S+:\w+)")
_ON_GROUP = re.compile(r"on resource: \S+:security-group/")

_FEDERATE = "sts:GetFederationToken"
_NOTHING = '{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Action":"*","Resource":"*"}]}'


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


# --- permissions


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """What came of a dry run. refused: the action that AWS named. ambiguous: the refusal may be about a stand-in."""

    dry_run: DryRun
    allowed: bool = False
    refused: str | None = None
    ambiguous: bool = False


def describe_permissions(clients: Clients, wanted: Wanted) -> Permissions:
    """What the caller may do of all that launching the missing nodes and ending the cluster takes.

    wanted.preflight has the ways to launch, of which the first is rehearsed.
    Raises AwsError when the account cannot be used as it is, and boto3's errors.
    """
    config, caller = wanted.config, wanted.caller
    kinds = [kind.dry_runs for kind in KINDS if kind.dry_runs is not None]
    dry_runs = [dry_run for rehearse in kinds for dry_run in rehearse(clients.ec2, wanted)]
    with bounded_pool() as pool:
        asked = [pool.submit(_attempt, dry_run) for dry_run in dry_runs]
        # Only users limit the credentials of jobs so; roles do it in other ways.
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
    """Rehearses a call. The one place where dry runs are sent: with DryRun set, whatever the request says."""
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
        named = _PERFORM.search(words)
        # A launch without a group of its own names the VPC's default one: that too is a stand-in.
        default_group = dry_run.action == "ec2:RunInstances" and not _names_group(dry_run) and _ON_GROUP.search(words)
        return _Answer(
            dry_run=dry_run,
            refused=named[1] if named else dry_run.action,
            ambiguous=bool(dry_run.stands_in or default_group) and "explicit deny" not in words,
        )
    raise AwsError(
        f"{dry_run.action} was to be rehearsed only (DryRun), and the service carried it out",
        hint="this is not EC2 as AWS has it: check AWS_ENDPOINT_URL, and look what was made there",
    )


def _may_limit_jobs(clients: Clients, name: str) -> bool:
    """Whether the caller may make limited credentials for jobs; tried with some that may do nothing.

    Where not, `cluster train` warns of it: nodes can be launched all the same.
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
    """The verdict on each action; what is known to be missing outweighs the rest. Pure."""
    tags_decide = not any(answer.allowed for answer in answers if answer.dry_run.stands_in)
    found: dict[Verdict, list[str]] = {"unknown": [], "allowed": [], "missing": []}  # later ones outweigh earlier ones
    for answer in answers:
        if answer.allowed:
            found["allowed"] += [answer.dry_run.action, *answer.dry_run.also]
            continue
        found["unknown"].append(answer.dry_run.action)
        if answer.refused is not None and not (answer.ambiguous and (tags_decide or not answer.dry_run.stands_in)):
            found["missing"].append(answer.refused)
    return {action: verdict for verdict, actions in found.items() for action in actions}
