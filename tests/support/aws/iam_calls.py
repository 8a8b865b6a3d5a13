"""The permissions that the calls in the sandbox's API log need, and which of them a policy does not allow.

S3's are checked with their buckets and keys, the others by the action alone: the tables of test_operator_policy.py and
test_role_policy.py have their resources and conditions.

https://docs.aws.amazon.com/service-authorization/latest/reference/reference_policies_actions-resources-contextkeys.html
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from iam_evaluator import Context, allows, has_action, read_statements

Entry = Mapping[str, Any]
"""A line of the API log."""

ALWAYS_ALLOWED = ("sts:GetCallerIdentity", "sts:GetSessionToken")
# S3 operations whose permission has a different name.
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html
S3_ACTIONS = {
    "ListBuckets": "ListAllMyBuckets", "HeadBucket": "ListBucket", "ListObjects": "ListBucket",
    "ListObjectsV2": "ListBucket", "ListMultipartUploads": "ListBucketMultipartUploads", "HeadObject": "GetObject",
    "CopyObject": "PutObject", "CreateMultipartUpload": "PutObject", "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject", "ListParts": "ListMultipartUploadParts", "DeleteObjects": "DeleteObject",
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "PutBucketLifecycleConfiguration": "PutLifecycleConfiguration",
    "PutBucketEncryption": "PutEncryptionConfiguration", "PutPublicAccessBlock": "PutBucketPublicAccessBlock",
}  # fmt: skip


def find_denied(entries: Iterable[Entry], policy: str) -> set[str]:
    """The permissions that calls needed and that a policy does not grant: "ec2:RunInstances", "s3:GetObject on ARN"."""
    denied = set()
    for entry in entries:
        if entry["service"] == "s3":
            action, resource, context = describe_s3(entry)
            if not allows(policy, action, resource, context):
                denied.add(f"{action} on {resource}")
        else:
            needed = {action for action in find_actions(entry) if action not in ALWAYS_ALLOWED}
            denied |= {a for a in needed if not any(has_action(one, a) for one in read_statements(policy))}
    return denied


def describe_s3(entry: Entry) -> tuple[str, str, Context]:
    """The permission that a call of S3 needs: action, ARN and condition keys."""
    given, context = entry["parameters"], {"aws:requestedregion": (entry["region"] or "",)}
    bucket, _, key = entry["resource"].partition("/")
    action = S3_ACTIONS.get(entry["action"], entry["action"])
    if action == "ListBucket" and "prefix" in given:
        context["s3:prefix"] = (given["prefix"],)
    key = "*" if entry["action"] == "DeleteObjects" else key  # the log does not have the body
    return (
        f"s3:{action}",
        f"arn:aws:s3:::{bucket}/{key}" if key else f"arn:aws:s3:::{bucket}" if bucket else "*",
        context,
    )


def find_actions(entry: Entry) -> Iterator[str]:
    """The actions that a call of another service needs."""
    service = entry["service"].replace("-", "")
    yield f"{service}:{entry['action']}"
    given = entry["parameters"]
    if service == "ec2" and any(name.startswith("TagSpecification.") and ".Tag." in name for name in given):
        yield "ec2:CreateTags"
    if entry["action"] == "AddRoleToInstanceProfile" or any(name.startswith("IamInstanceProfile.") for name in given):
        yield "iam:PassRole"
