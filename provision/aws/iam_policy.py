"""IAM policies for a job's credentials and for volumes, and the building blocks of every policy. Pure.

provision/aws/operator_policy.py has the operator's policy, provision/aws/role_policy.py the policy of the nodes' role.
The resources and condition keys of each action:
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazons3.html
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from foundation.errors import ConfigError
from provision.model import domain_of
from provision.volumes.source import MountSource

Statement = dict[str, Any]
"""One statement of a policy document."""

MAX_SESSION_POLICY_LENGTH = 2048
"""The maximum of characters (https://docs.aws.amazon.com/STS/latest/APIReference/API_GetFederationToken.html)."""

READ = ("s3:GetObject",)
WRITE = ("s3:AbortMultipartUpload", "s3:ListMultipartUploadParts", "s3:PutObject")
"""Without deletion. But a job can overwrite objects and abort uploads, unless the bucket keeps versions."""

CHECKPOINT_MARKS = ".metadata*"
"""The names of the files that torch.distributed.checkpoint writes last and renames, which S3 does by deletion: a job
may delete these in folders below what it writes."""

LIKE_OR_NONE = "StringLikeIfExists"
"""For buckets that a job writes to. To a caller who may not list without a prefix, S3 answers 403 where an object does
not exist: s3fs and boto3 then fail at the question whether there is a checkpoint."""

_NOT_LITERAL = re.compile(r"[*?$\x00-\x1f\x7f]")
"""Characters that IAM reads as a wildcard or a variable, or rejects in a policy."""


class S3Scope(Struct, frozen=True, kw_only=True):
    """The s3:// URLs that a job may use.

    data_url: [data] url, to read below it; results_url: [data] results, to write and read below it. also_read,
    also_written: further prefixes of keys; written keys may also be read. read_secretly: prefixes from variables, whose
    values are never shown.
    """

    data_url: str | None = None
    results_url: str | None = None
    also_read: tuple[str, ...] = ()
    also_written: tuple[str, ...] = ()
    read_secretly: tuple[str, ...] = ()

    @property
    def read(self) -> tuple[str, ...]:
        """The URLs that the job may only read."""
        return (*((self.data_url,) if self.data_url is not None else ()), *self.also_read, *self.read_secretly)

    @property
    def written(self) -> tuple[str, ...]:
        """The URLs that the job may write and read."""
        return (*((self.results_url,) if self.results_url is not None else ()), *self.also_written)

    @property
    def is_empty(self) -> bool:
        """Whether there are no URLs."""
        return not self.read and not self.written


def partition_of(region: str) -> str:
    """Returns the partition of a region, as in ARNs.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference-arns.html
    """
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def ec2_principal(region: str) -> str:
    """Returns EC2's service principal in a region's partition."""
    return f"ec2.{domain_of(region)}"


def render_trust_policy(region: str) -> str:
    """Returns the trust policy of the nodes' role: EC2 may assume it for its instances."""
    statement = {"Effect": "Allow", "Principal": {"Service": ec2_principal(region)}, "Action": "sts:AssumeRole"}
    return render_document([statement])


def render_job_policy(scope: S3Scope, *, region: str) -> str:
    """Returns the permissions of a job's credentials, as compact JSON: a session policy, whose size limit is small.

    A session policy only restricts the caller's permissions. So it allows all KMS keys: S3 can use those that the
    caller may use, for the objects that are allowed here. Raises ConfigError when the policy is too long, and the
    errors of s3_statements.
    """
    document = _render_session_policy(s3_statements(scope, region=region))
    if len(document) > MAX_SESSION_POLICY_LENGTH:
        raise ConfigError(
            f"the policy for the job's credentials would have {len(document)} characters; AWS allows "
            f"{MAX_SESSION_POLICY_LENGTH}: the job's arguments and variables have too many s3:// URLs",
            hint="put what the job reads below [data] url, and use fewer s3:// URLs",
        )
    return document


def s3_statements(scope: S3Scope, *, region: str) -> list[Statement]:
    """Returns the permissions to use the URLs: to list their folders, or a whole bucket that is written to.

    One prefix has no slash at its end, because MXNet's reader looks for a folder that way (dmlc-core,
    src/io/s3_filesys.cc, TryGetPathInfo): so keys that begin with the folder's name can be listed, too. Raises
    ConfigError when IAM would not take a character literally.
    """
    if scope.is_empty:
        return []
    written = [Keys.below(scope.results_url, key="[data] results")] if scope.results_url is not None else []
    written += [Keys.from_beginning(url, written=True) for url in scope.also_written]
    read = [Keys.below(scope.data_url, key="[data] url")] if scope.data_url is not None else []
    read += [*written, *(Keys.from_beginning(url) for url in (*scope.also_read, *scope.read_secretly))]
    buckets: dict[str, list[str]] = {}
    for keys in read:
        buckets.setdefault(keys.bucket, []).extend(keys.prefixes)
    base = f"arn:{partition_of(region)}:s3:::"
    arns = [f"{base}{path}" for keys in read for path in keys.paths]
    # One statement for objects and buckets is shorter. s3fs asks for the location to see whether a bucket exists.
    statements = [_allow_shortly([*READ, "s3:GetBucketLocation"], [*arns, *(f"{base}{bucket}" for bucket in buckets)])]
    if written:
        arns = [f"{base}{path}" for keys in written for path in keys.paths]
        statements.append(_allow_shortly(WRITE, arns))
        marks = [f"{arn}/{CHECKPOINT_MARKS}" for arn in arns if arn.endswith("*")]
        statements.append(_allow_shortly(["s3:DeleteObject"], marks))
    for bucket, prefixes in buckets.items():
        operator = LIKE_OR_NONE if bucket in {keys.bucket for keys in written} else "StringLike"
        condition = None if "*" in prefixes else {operator: {"s3:prefix": list(dict.fromkeys(prefixes))}}
        statements.append(_allow_shortly(["s3:ListBucket"], [f"{base}{bucket}"], condition))
    return statements


def render_volumes_policy(sources: Sequence[MountSource], *, region: str) -> str:
    """Returns the permissions of nodes for the buckets of s3:// volumes, as compact JSON: a session policy.

    Unlike a job, a file system also deletes and renames. s3fs starts by listing the bucket without a prefix, so the
    names of all its keys can be listed.
    """
    base = f"arn:{partition_of(region)}:s3:::"
    statements = []
    for source in sources:
        actions = READ if source.read_only else (*READ, *WRITE, "s3:DeleteObject")
        statements.append(_allow_shortly(actions, [f"{base}{source.bucket}/{source.prefix}*"]))
        folder = source.prefix.rstrip("/")
        prefixes = {"StringLikeIfExists": {"s3:prefix": [folder, f"{folder}/*"]}} if folder else None
        statements.append(_allow_shortly(["s3:ListBucket"], [f"{base}{source.bucket}"], prefixes))
    return _render_session_policy(statements)


def _render_session_policy(statements: Sequence[Statement]) -> str:
    """Returns the document, with the keys of encrypted buckets."""
    through_s3 = {"StringLike": {"kms:ViaService": "s3.*"}}
    keys = _allow_shortly(["kms:Decrypt", "kms:GenerateDataKey"], ["*"], through_s3)
    return json.dumps({"Version": "2012-10-17", "Statement": [*statements, keys]}, separators=(",", ":"))


def allow(
    sid: str,
    actions: Sequence[str],
    resources: Sequence[str],
    condition: Mapping[str, Mapping[str, Any]] | None = None,
) -> Statement:
    """Returns a statement that allows actions on resources. A list of one is shortened to its element."""
    statement: Statement = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": _word_or_list(actions),
        "Resource": _word_or_list(resources),
    }
    return statement if condition is None else {**statement, "Condition": dict(condition)}


def allow_passing(role: str, *, region: str) -> Statement:
    """Returns a statement that allows giving a role to instances."""
    # Both names, as in AWS's own AWSEC2SpotServiceRolePolicy: in China, either may be used.
    services = sorted({"ec2.amazonaws.com", ec2_principal(region)})
    return allow("GiveRole", ["iam:PassRole"], [role], {"StringEquals": {"iam:PassedToService": services}})


def render_document(statements: Sequence[Statement]) -> str:
    """Returns a policy of these statements, as JSON."""
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)}, indent=2)


class Keys(Struct, frozen=True, kw_only=True):
    """Keys of a bucket. paths: with the bucket, as in ARNs; prefixes: those with which they may be listed."""

    bucket: str
    paths: tuple[str, ...]
    prefixes: tuple[str, ...]

    @classmethod
    def below(cls, url: str, *, key: str) -> "Keys":
        """Returns the keys of a folder of cluster.toml: all keys below it, or the whole bucket.

        A URL without a slash at its end may also name an object. key: its key in cluster.toml. Raises ConfigError for
        IAM's special characters.
        """
        if (found := _NOT_LITERAL.search(url)) is not None:
            raise ConfigError(
                f"{key} = {json.dumps(url)}: IAM would read {found[0]!r} as a wildcard or a variable",
                hint="choose a folder without * ? and $",
            )
        bucket, _, path = url.removeprefix("s3://").partition("/")
        folder = path.rstrip("/")
        within = f"{folder}/*" if folder else "*"
        names = (within,) if not path or path.endswith("/") else (folder, within)
        prefixes = (folder, within) if folder else ("*",)
        return cls(bucket=bucket, paths=tuple(f"{bucket}/{name}" for name in names), prefixes=prefixes)

    @classmethod
    def from_beginning(cls, url: str, *, written: bool = False) -> "Keys":
        """Returns the keys that begin with a URL's prefix.

        Readers also look for a folder without the slash at its end. They find objects by the beginning of their names,
        such as checkpoints, by listing the parent folder: obstore lists only whole folders.
        """
        bucket, _, key = url.removeprefix("s3://").partition("/")
        prefixes = [f"{key}*"]
        if key.endswith("/"):
            prefixes.append(key[:-1])
        elif written:
            prefixes.append(key[: key.rfind("/") + 1] or "*")
        return cls(bucket=bucket, paths=(f"{bucket}/{key}*",), prefixes=tuple(prefixes))


def _allow_shortly(
    actions: Sequence[str],
    resources: Sequence[str],
    condition: Mapping[str, Mapping[str, Any]] | None = None,
) -> Statement:
    """Returns the same statement without its optional Sid, and without duplicate resources."""
    statement = allow("", actions, list(dict.fromkeys(resources)), condition)
    del statement["Sid"]
    return statement


def _word_or_list(words: Sequence[str]) -> str | list[str]:
    return words[0] if len(words) == 1 else list(words)
