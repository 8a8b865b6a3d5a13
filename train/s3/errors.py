"""The errors to show for those of S3: of botocore and obstore.

boto3 is imported only to explain an error: it takes half a second.
"""

from botocore.exceptions import BotoCoreError, ClientError

from foundation.errors import AwsError, ClusterError, CredentialsError, NotFoundError
from node.staging.s3_store import find_reason, find_tag
from provision.aws.error_hints import CREDENTIAL_CODES, NOT_REACHED, find_hint
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
    "get_object": "s3:GetObject",
    "head_object": "s3:GetObject",
    "list_buckets": "s3:ListAllMyBuckets",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    "list_objects_v2": "s3:ListBucket",
    "put_bucket_lifecycle_configuration": "s3:PutLifecycleConfiguration",
}


class S3AccessDeniedError(AwsError):
    """The caller is known to S3 and lacks a permission."""


class OwnBucketError(AwsError):
    """The bucket exists and belongs to this account."""


def explain(error: Exception, method: str, *, bucket: str | None, key: str | None) -> ClusterError:
    """The error to show for an error of botocore."""
    if not isinstance(error, ClientError):
        return _explain_failure(error)
    if error.operation_name in _CREDENTIAL_CALLS:
        from provision.aws.clients import translate_refusal  # noqa: PLC0415 - see the top

        return translate_refusal(error, "getting credentials")
    refusal = error.response["Error"]
    return _explain_refusal(refusal.get("Code", "?"), refusal.get("Message", ""), method, bucket, key)


def explain_obstore(error: Exception, method: str, *, bucket: str, key: str) -> ClusterError:
    """The error to show for an error of obstore, whose message quotes S3's answer."""
    text = str(error)
    if code := find_tag("Code", text):
        return _explain_refusal(code, find_tag("Message", text), method, bucket, key)
    why = find_reason(text)
    what, hint = (f"S3 cannot be used: {why}", NOT_REACHED) if why else (text.partition("\n")[0], _WHO_AM_I)
    return AwsError(f"{S3Url(bucket=bucket, key=key)}: {what} ({method})", hint=hint)


def _explain_failure(error: Exception) -> AwsError:
    """The error for a call that got no answer: S3 was not reached, or there are no credentials."""
    from provision.aws.clients import translate_failure  # noqa: PLC0415 - see the top

    match error:
        case BotoCoreError() | EOFError():
            known = translate_failure(error, "asking S3")
            return type(known)(known.message, hint=known.hint or _WHO_AM_I)
    return AwsError(f"S3 cannot be used: {type(error).__name__}: {error}", hint=_WHO_AM_I)


_PLAIN = "{where}: {words} ({code}, {method})"
# The error by S3's code: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html. What it is, what it says,
# and the next command.
_ERRORS: dict[str, tuple[type[ClusterError], str, str | None]] = {
    "NoSuchBucket": (
        NotFoundError,
        "bucket {bucket} does not exist",
        "cluster data ls shows your buckets; --create-bucket of put, pack and split makes one",
    ),
    "NoSuchKey": (NotFoundError, "{where}: no such object", "cluster data ls s3://{bucket}/"),
    "NoSuchUpload": (NotFoundError, "{where}: the multipart upload no longer exists", "run the command again"),
    "AccessDenied": (S3AccessDeniedError, "{where}: access denied, {action} is needed ({words})", _WHO_AM_I),
    "BucketAlreadyOwnedByYou": (OwnBucketError, _PLAIN, _WHO_AM_I),
    "BucketAlreadyExists": (
        AwsError,
        _PLAIN,
        "another account has this name: choose another, or use theirs without --create-bucket",
    ),
    "BucketNotEmpty": (AwsError, _PLAIN, "it still has old versions, or objects were added meanwhile"),
    "PreconditionFailed": (AwsError, _PLAIN, "it was changed while it was read: run the command again"),
}


def _explain_refusal(code: str, words: str, method: str, bucket: str | None, key: str | None) -> ClusterError:
    if code in CREDENTIAL_CODES:
        return CredentialsError(f"{words or code} ({code}, {method})", hint=find_hint(code, words, operation=method))
    # Answers to HEAD have no body: botocore knows only the status.
    known = {"403": "AccessDenied", "404": "NoSuchKey" if key else "NoSuchBucket"}.get(code, code)
    kind, what, hint = _ERRORS.get(known, (AwsError, _PLAIN, _WHO_AM_I))
    facts = {
        "where": str(S3Url(bucket=bucket, key=key or "")) if bucket else "S3",
        "bucket": bucket,
        "words": words or code,
        "code": code,
        "method": method,
        "action": ACTIONS.get(method, "s3:PutObject"),
    }
    return kind(what.format(**facts), hint=hint and hint.format(**facts))
