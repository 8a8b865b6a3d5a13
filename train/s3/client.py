"""The errors to show for those of S3: of botocore, obstore and s3fs.

boto3 is imported only to explain an error: it takes half a second.
"""

from dataclasses import dataclass
from datetime import datetime
from json import JSONDecodeError
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from foundation.errors import AwsError, ClusterError, CredentialsError, NotFoundError
from provision.aws.error_hints import CREDENTIAL_CODES, find_hint
from train.s3.url import S3Url

_WHO_AM_I = "aws sts get-caller-identity"
# The calls by which botocore gets credentials before it can call S3.
_CREDENTIAL_CALLS = frozenset(
    {"AssumeRole", "AssumeRoleWithSAML", "AssumeRoleWithWebIdentity", "CreateOAuth2Token", "GetRoleCredentials"}
)
# The permission that each call needs.
ACTIONS = {
    "abort_multipart_upload": "s3:AbortMultipartUpload",
    "create_bucket": "s3:CreateBucket",
    "delete_bucket": "s3:DeleteBucket",
    "delete_objects": "s3:DeleteObject",
    "get_bucket_encryption": "s3:GetEncryptionConfiguration",
    "get_object": "s3:GetObject",
    "get_public_access_block": "s3:GetBucketPublicAccessBlock",
    "head_object": "s3:GetObject",
    "list_buckets": "s3:ListAllMyBuckets",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    "list_objects_v2": "s3:ListBucket",
    "list_parts": "s3:ListMultipartUploadParts",
    "put_bucket_encryption": "s3:PutEncryptionConfiguration",
    "put_bucket_lifecycle_configuration": "s3:PutLifecycleConfiguration",
    "put_public_access_block": "s3:PutBucketPublicAccessBlock",
}
_UNSET = frozenset({"NoSuchPublicAccessBlockConfiguration", "ServerSideEncryptionConfigurationNotFoundError"})


class S3AccessDeniedError(AwsError):
    """The caller is known to S3 and lacks a permission."""


class OwnBucketError(AwsError):
    """The bucket exists and belongs to this account."""


class DamagedBodyError(AwsError):
    """S3 rejected a body that does not match its checksum: it was damaged in transit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Object:
    """An object as a listing shows it; `etag` changes with its content."""

    url: S3Url
    size_bytes: int
    modified: datetime
    etag: str


def explain(error: Exception, method: str, *, bucket: str | None, key: str | None) -> ClusterError:
    """The error to show for an error of botocore or s3fs."""
    # s3fs turns botocore's errors into subclasses of OSError, and keeps the original as the cause.
    cause = error if isinstance(error, ClientError | BotoCoreError) else error.__cause__
    if not isinstance(cause, ClientError):
        return _explain_failure(error)
    if cause.operation_name in _CREDENTIAL_CALLS:
        from provision.aws.clients import translate_refusal  # noqa: PLC0415 - see the top

        return translate_refusal(cause, "getting credentials")
    refusal = cause.response["Error"]
    code, words = refusal.get("Code", "?"), refusal.get("Message", "")
    if code in CREDENTIAL_CODES:
        return CredentialsError(f"{words or code} ({code}, {method})", hint=find_hint(code, words, operation=method))
    return _explain_refusal(code, words, method, bucket, key)


def _explain_failure(error: Exception) -> AwsError:
    """The error for a call that got no answer: S3 was not reached, or there are no credentials."""
    from provision.aws.clients import translate_failure  # noqa: PLC0415 - see the top

    match error:
        case BotoCoreError() | JSONDecodeError() | EOFError():
            known = translate_failure(error, "asking S3")
            return type(known)(known.message, hint=known.hint or _WHO_AM_I)
    return AwsError(f"S3 cannot be used: {type(error).__name__}: {error}", hint=_WHO_AM_I)


def _explain_refusal(code: str, words: str, method: str, bucket: str | None, key: str | None) -> ClusterError:
    where = str(S3Url(bucket=bucket, key=key or "")) if bucket else "S3"
    # Answers to HEAD have no body: botocore knows only the status.
    if code == "NoSuchBucket" or (code == "404" and not key):
        hint = "cluster data ls shows your buckets; put --create-bucket makes one"
        return NotFoundError(f"bucket {bucket} does not exist", hint=hint)
    if code == "NoSuchUpload":
        return NotFoundError(f"{where}: the multipart upload no longer exists", hint="run the command again")
    if code in {"NoSuchKey", "404"}:
        return NotFoundError(f"{where}: no such object", hint=f"cluster data ls s3://{bucket}/")
    if code in _UNSET:
        return NotFoundError(f"{where}: {words or code}")
    if code in {"AccessDenied", "403"}:
        action = ACTIONS.get(method, "s3:PutObject")
        return S3AccessDeniedError(f"{where}: access denied, {action} is needed ({words or code})", hint=_WHO_AM_I)
    advice = {
        "BadDigest": "run the command again",
        "BucketAlreadyExists": "another account has this name: choose another, or use theirs without --create-bucket",
        "BucketNotEmpty": "it still has old versions, or objects were added meanwhile",
        "PreconditionFailed": "it was changed while it was read: run the command again",
    }.get(code)
    kind = {"BadDigest": DamagedBodyError, "BucketAlreadyOwnedByYou": OwnBucketError}.get(code, AwsError)
    return kind(f"{where}: {words or code} ({code}, {method})", hint=advice or _WHO_AM_I)


def read_object(bucket: str, item: dict[str, Any]) -> S3Object:
    """Converts an object of a ListObjectsV2 response. Pure."""
    return S3Object(
        url=S3Url(bucket=bucket, key=item["Key"]),
        size_bytes=item["Size"],
        modified=item["LastModified"],
        etag=item["ETag"],
    )
