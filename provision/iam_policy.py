"""IAM's policy documents for the nodes' role, and what every document is made of. Pure.

provision/operator_policy.py has the one for whoever runs this program. Which action takes which resources and
condition keys is AWS's Service Authorization Reference:
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazons3.html
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.errors import ConfigError

Statement = dict[str, Any]
"""One statement of a policy document."""

_NOT_LITERAL = re.compile(r"[*?$\x00-\x1f\x7f]")
"""What IAM takes for a wildcard or a variable, or refuses in a document."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """What an s3:// URL of cluster.toml stands for: all keys below `key`, all of the bucket where it is empty.

    exact: the URL had no slash at its end, so that it may name an object as well.
    """

    bucket: str
    key: str
    exact: bool


def partition_of(region: str) -> str:
    """The part of AWS that a region is in, as ARNs name it.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference-arns.html
    """
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def ec2_principal(region: str) -> str:
    """EC2 as policies of a region's partition name it; in China it has a name of its own."""
    return "ec2.amazonaws.com.cn" if partition_of(region) == "aws-cn" else "ec2.amazonaws.com"


def render_trust_policy(region: str) -> str:
    """Who may take the nodes' role: EC2, for its instances."""
    statement = {"Effect": "Allow", "Principal": {"Service": ec2_principal(region)}, "Action": "sts:AssumeRole"}
    return render_document([statement])


def render_role_policy(*, data_url: str | None, results_url: str | None, region: str) -> str:
    """What the nodes' role may do, as JSON: read below data_url; write below results_url, and read that back.

    Both are "s3://BUCKET/FOLDER/". Listing is allowed for these folders' own prefixes alone; one of them has no
    slash at its end, since that is how MXNet's reader looks for a folder (dmlc-core, src/io/s3_filesys.cc,
    TryGetPathInfo): the names, not more, of keys that begin as the folder's name does can be seen by it.
    Raises ConfigError when there is neither, or when one has letters that IAM would not take literally.
    """
    partition = partition_of(region)
    statements: list[Statement] = []
    if data_url is not None:
        folder = parse_folder(data_url, key="[data] url")
        statements.append(allow("ReadData", ["s3:GetObject"], _object_arns(folder, partition)))
        statements.append(_list_statement("ListData", folder, partition))
    if results_url is not None:
        folder = parse_folder(results_url, key="[data] results")
        # Deleting, too: who may overwrite can destroy as much, and old checkpoints are to go.
        actions = [f"s3:{name}" for name in ("AbortMultipartUpload", "DeleteObject", "GetObject")]
        actions += ["s3:ListMultipartUploadParts", "s3:PutObject"]
        statements.append(allow("WriteResults", actions, _object_arns(folder, partition)))
        statements.append(_list_statement("ListResults", folder, partition))
    if not statements:
        raise ConfigError(
            '[provision] instance_profile = "auto": the role that would be made has nothing to read or write, '
            "since neither [data] url nor [data] results is set",
            hint='set [data] url = "s3://BUCKET/FOLDER/", or instance_profile = "none"',
        )
    return render_document(statements)


def parse_folder(url: str, *, key: str) -> Folder:
    """The folder of a URL. key: cluster.toml's name for it. Raises ConfigError for what IAM cannot be told."""
    if (found := _NOT_LITERAL.search(url)) is not None:
        raise ConfigError(
            f"{key} = {json.dumps(url)}: {found[0]!r} in it would be a wildcard or a variable to IAM",
            hint="choose a folder without * ? and $",
        )
    bucket, _, path = url.removeprefix("s3://").partition("/")
    return Folder(bucket=bucket, key=path.rstrip("/"), exact=bool(path) and not path.endswith("/"))


def allow(
    sid: str,
    actions: Sequence[str],
    resources: Sequence[str],
    condition: Mapping[str, Mapping[str, Any]] | None = None,
) -> Statement:
    """A statement that allows actions on resources; lists of one are written without brackets, which saves room."""
    statement: Statement = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": _word_or_list(actions),
        "Resource": _word_or_list(resources),
    }
    return statement if condition is None else {**statement, "Condition": dict(condition)}


def render_document(statements: Sequence[Statement]) -> str:
    """The document of these statements, as JSON."""
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)}, indent=2)


def _object_arns(folder: Folder, partition: str) -> list[str]:
    base = f"arn:{partition}:s3:::{folder.bucket}/{folder.key}"
    below = f"{base}/*" if folder.key else f"{base}*"
    return [base, below] if folder.exact else [below]


def _list_statement(sid: str, folder: Folder, partition: str) -> Statement:
    prefixes = {"StringLike": {"s3:prefix": [folder.key, f"{folder.key}/*"]}} if folder.key else None
    return allow(sid, ["s3:ListBucket"], [f"arn:{partition}:s3:::{folder.bucket}"], prefixes)


def _word_or_list(words: Sequence[str]) -> str | list[str]:
    return words[0] if len(words) == 1 else list(words)
