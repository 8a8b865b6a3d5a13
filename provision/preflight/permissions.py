"""Finds out what the caller may do, before anything is made: by EC2's dry runs, and where those cannot tell, by IAM.

A dry run has no effect; EC2 answers DryRunOperation when the caller may do it, else UnauthorizedOperation
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/CommonParameters.html, DryRun).

What `down` will delete is not there yet: its dry runs name stand-ins, which cannot exist. One that is refused means
that the permission is missing, or that it goes by tags, which a stand-in has none of. The second is taken for so when
all that name stand-ins are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from botocore.exceptions import ClientError

from provision.aws import Clients, error_code
from provision.config import ProvisionConfig
from provision.errors import AwsError
from provision.model import (
    TAG_NAME,
    Caller,
    ClusterState,
    LaunchOption,
    Permissions,
    federated_name,
    profile_name,
    tags,
)
from provision.preflight.dry_runs import DryRun, list_dry_runs, rehearse_launch
from provision.preflight.simulation import Question, Verdict, simulate
from provision.side_by_side import reading_pool

_ACCOUNT_STATES = frozenset({"Blocked", "OptInRequired", "PendingVerification"})
"""Codes that say that the account cannot be used as it is: no launch would succeed."""

_PERFORM = re.compile(r"perform: (\S+:\w+)")
_ON_GROUP = re.compile(r"on resource: \S+:security-group/")

_FEDERATE = "sts:GetFederationToken"
_NOTHING = '{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Action":"*","Resource":"*"}]}'
_ROLE_ACTIONS = ("CreateRole", "DeleteRole", "DeleteRolePolicy", "PutRolePolicy", "TagRole", "PassRole")
_PROFILE_ACTIONS = (
    "AddRoleToInstanceProfile",
    "CreateInstanceProfile",
    "DeleteInstanceProfile",
    "RemoveRoleFromInstanceProfile",
    "TagInstanceProfile",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """What came of a dry run. refused: the action that AWS named. ambiguous: the refusal may be about a stand-in."""

    dry_run: DryRun
    allowed: bool = False
    refused: str | None = None
    ambiguous: bool = False


def describe_permissions(
    clients: Clients,
    *,
    config: ProvisionConfig,
    state: ClusterState,
    caller: Caller,
    name: str,
    missing: tuple[int, ...],
    options: Sequence[LaunchOption],
) -> Permissions:
    """What the caller may do of all that launching the nodes and ending the cluster `name` takes.

    missing: indices of the nodes to be launched; options: ways to launch, of which the first is rehearsed.
    Raises AwsError when the account cannot be used as it is, and boto3's errors.
    """
    launch = rehearse_launch(config, state, name, missing, options)
    dry_runs = tuple(list_dry_runs(clients.ec2, config=config, state=state, caller=caller, name=name, launch=launch))
    with reading_pool() as pool:
        asked = [pool.submit(_attempt, dry_run) for dry_run in dry_runs]
        # Only users limit the credentials of jobs so; roles do it in other ways.
        is_asked = config.instance_profile == "none" and ":user/" in caller.owner
        limited = pool.submit(_may_limit_jobs, clients, name) if is_asked else None
    verdicts = judge([answer.result() for answer in asked])
    questions = [
        *_ask_again(verdicts, dry_runs, caller=caller, name=name),
        *(_ask_about_role(caller, name) if config.instance_profile == "auto" else ()),
    ]
    verdicts |= simulate(clients.iam, questions, owner=caller.owner)
    by_verdict: dict[Verdict, list[str]] = {"allowed": [], "missing": [], "unknown": []}
    for action, verdict in sorted(verdicts.items()):
        by_verdict[verdict].append(action)
    return Permissions(
        **{verdict: tuple(actions) for verdict, actions in by_verdict.items()},
        without=() if limited is None or limited.result() else (_FEDERATE,),
    )


# --- answers


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


# --- what IAM is asked


def _ask_again(
    verdicts: Mapping[str, Verdict], dry_runs: Sequence[DryRun], *, caller: Caller, name: str
) -> Iterator[Question]:
    """About what dry runs did not tell, as if the cluster's resources were there with their tags."""
    context = {f"{prefix}/{TAG_NAME}": (name,) for prefix in ("aws:ResourceTag", "ec2:ResourceTag")}
    context |= dict.fromkeys(("aws:RequestedRegion", "ec2:Region"), (caller.region,))
    account = f"arn:{_partition(caller)}:ec2:{caller.region}:{caller.account_id}"
    for dry_run in dry_runs:
        if verdicts[dry_run.action] == "unknown" and dry_run.resource is not None:
            yield Question(action=dry_run.action, resource=f"{account}:{dry_run.resource}", context=context)


def _ask_about_role(caller: Caller, name: str) -> Iterator[Question]:
    """About the role that is made for the nodes: IAM has no dry runs."""
    own = profile_name(name, region=caller.region)
    account = f"arn:{_partition(caller)}:iam::{caller.account_id}"
    named = tags(name=name, owner=caller.owner, role="role")
    context: dict[str, tuple[str, ...]]
    context = {f"{prefix}/{TAG_NAME}": (name,) for prefix in ("aws:ResourceTag", "aws:RequestTag", "iam:ResourceTag")}
    context |= {"aws:TagKeys": tuple(named), "iam:PassedToService": ("ec2.amazonaws.com",)}
    for kind, actions in (("role", _ROLE_ACTIONS), ("instance-profile", _PROFILE_ACTIONS)):
        for action in actions:
            yield Question(action=f"iam:{action}", resource=f"{account}:{kind}/{own}", context=context)


def _partition(caller: Caller) -> str:
    return caller.owner.split(":")[1]
