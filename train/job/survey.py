"""Asks AWS about a job's data and owner before the job starts."""

from collections import Counter
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from foundation.errors import ClusterError
from foundation.thread_pool import run_in_thread
from provision.aws.clients import Clients
from train.s3.url import parse_url

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MAX_PAGES = 10
"""The most pages of a listing that are read, a thousand objects each: a job does not wait for all of a large folder."""
MAGIC = bytes.fromhex("0a23d7ce")
"""The first bytes of every RecordIO file."""
# After these errors, the job starts without the answer. botocore raises OSError and ValueError for an invalid CA bundle
# or endpoint.
_UNKNOWN = (BotoCoreError, ClusterError, OSError, ValueError)
# S3's errors that do not change for these credentials.
_REFUSALS = frozenset({"AccessDenied", "InvalidObjectState", "AllAccessDisabled", "InvalidRequest"})
_VALIDATION = ("val/", "validation/", "test/")
_TRAINING = "train/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """What S3 refuses to this machine's credentials. what: "listed" or "read". code, words: those of S3's error."""

    what: str
    where: str
    code: str
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The content of [data] url.

    records: the number of .rec files outside of validation folders. in_train: the number of those in train/.
    complete: everything below the URL was counted.
    folder: where training finds its records below the URL (such as "train/", or ""). sizes: of the .rec files directly
    in that folder, in S3's order, in bytes. others: the names of its other files that are not empty.
    region: the bucket's; None if it is not known. at_aws: S3 was asked at AWS's own endpoint.
    refused: what S3 refuses. not_records: the URL of a .rec file that is not a RecordIO file. cut_short: the key below
    the URL of a .rec file whose size shows that it is incomplete.
    """

    objects: int
    records: int
    in_train: int = 0
    complete: bool = True
    bucket_exists: bool = True
    folder: str = ""
    sizes: tuple[int, ...] = ()
    others: tuple[str, ...] = ()
    region: str | None = None
    at_aws: bool = True
    refused: Refusal | None = None
    not_records: str | None = None
    cut_short: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What is known of a job's data and owner. data: None if it is not known. region: the job's.

    owner: an ARN, or a user name if the job uses no AWS; None if it is not known.
    """

    data: Data | None = None
    owner: str | None = None
    region: str | None = None


def count(items: list[tuple[str, int]], *, complete: bool) -> Data:
    """Counts objects, given as names below the URL with sizes in bytes, in S3's order. Pure.

    MXNet reads every non-empty file directly in a folder, whatever its name, and no file in its subfolders.
    """
    there = [(key, size_bytes) for key, size_bytes in items if size_bytes]
    records = [key for key, _ in there if key.endswith(".rec") and not key.startswith(_VALIDATION)]
    in_folders = Counter(key[: key.rfind("/") + 1] for key in records)
    # The folder that the shipped scripts read, otherwise the one with the most records.
    chosen = (folder for folder in (_TRAINING, "") if in_folders[folder])
    folder = next(chosen, max(in_folders, key=lambda name: in_folders[name], default=""))
    inside = [(key, size) for key, size in there if key.startswith(folder) and "/" not in key[len(folder) :]]
    return Data(
        objects=sum(bool(key) and not key.endswith("/") for key, _ in items),
        records=len(records),
        in_train=sum(key.startswith(_TRAINING) for key in records),
        complete=complete,
        folder=folder,
        # Records are padded to a multiple of four bytes.
        cut_short=next((key for key, size in inside if key.endswith(".rec") and size % 4), None),
        sizes=tuple(size for key, size in inside if key.endswith(".rec")),
        others=tuple(key[len(folder) :] for key, _ in inside if not key.endswith(".rec")) if in_folders else (),
    )


class Surveyor:
    """Asks AWS in background threads while the command connects to the nodes; `result` waits for the answers.

    clients: None if the job uses no AWS. owner: the job's owner if it is not the caller's ARN.
    """

    def __init__(self, clients: Clients | None, *, url: str | None, owner: str | None = None) -> None:
        self._region = clients.region if clients is not None else None
        self._owner = run_in_thread(lambda: owner or (find_owner(clients) if clients is not None else None))
        self._data = run_in_thread(lambda: find_data(clients, url) if clients is not None and url is not None else None)

    def result(self, timeout_s: float = 10.0) -> Survey:
        """The answers; None for those that took longer than `timeout_s` seconds. Does not raise."""
        pending: list[Future[Any]] = [self._owner, self._data]
        wait(pending, timeout=timeout_s)
        return Survey(
            data=self._data.result() if self._data.done() else None,
            owner=self._owner.result() if self._owner.done() else None,
            region=self._region,
        )


def find_owner(clients: Clients) -> str | None:
    """The caller's ARN, as in the cluster's tags; None if AWS does not answer."""
    try:
        return clients.sts.get_caller_identity()["Arn"]
    except (ClientError, *_UNKNOWN):
        return None


def find_data(clients: Clients, url: str) -> Data | None:
    """Counts the objects below [data] url and reads a few bytes of one; None if S3 cannot be asked."""
    try:
        where = parse_url(url)
        prefix = where.as_folder().key
        s3 = clients.s3
        found, first = _list(s3, where.bucket, prefix)
        found = replace(
            found,
            region=found.region or (_find_region(s3, where.bucket) if found.bucket_exists else None),
            at_aws=".amazonaws.com" in s3.meta.endpoint_url,
        )
        return found if first is None else _read(s3, where.bucket, first, found)
    except (ClientError, *_UNKNOWN):
        return None


def _list(s3: "S3Client", bucket: str, prefix: str) -> tuple[Data, str | None]:
    """The objects, and the key of the one to read. Raises ClientError for temporary or unknown errors."""
    items: list[tuple[str, int]] = []
    request: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
    complete, region = False, None
    try:
        for _ in range(MAX_PAGES):
            page = s3.list_objects_v2(**request)
            items += [(item["Key"].removeprefix(prefix), item["Size"]) for item in page.get("Contents", ())]
            region = page["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")
            complete = not page.get("IsTruncated")
            if complete:
                break
            request["ContinuationToken"] = page["NextContinuationToken"]
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == "NoSuchBucket":
            return Data(objects=0, records=0, bucket_exists=False), None
        refusal = _find_refusal(error, what="listed", where=f"s3://{bucket}/{prefix}")
        return Data(objects=0, records=0, complete=False, refused=refusal), None
    data = replace(count(items, complete=complete), region=region)
    readable = [key for key, size_bytes in items if size_bytes]
    first = min(readable, key=lambda key: not (key.endswith(".rec") and key.startswith(data.folder)), default=None)
    return data, None if first is None else prefix + first


def _find_refusal(error: ClientError, *, what: str, where: str) -> Refusal:
    """The refusal, which a job would get, too. Raises any other error."""
    said = error.response.get("Error", {})
    if said.get("Code") not in _REFUSALS:
        raise error
    return Refusal(what=what, where=where, code=said["Code"], words=said.get("Message", ""))


def _find_region(s3: "S3Client", bucket: str) -> str | None:
    """The bucket's region. botocore follows S3's redirects to it; MXNet's reader does not."""
    try:
        return s3.head_bucket(Bucket=bucket).get("BucketRegion")
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")


def _read(s3: "S3Client", bucket: str, key: str, found: Data) -> Data:
    """Completes `found`: whether the object can be read, and whether it starts as a RecordIO file does."""
    where = f"s3://{bucket}/{key}"
    try:
        begin = s3.get_object(Bucket=bucket, Key=key, Range=f"bytes=0-{len(MAGIC) - 1}")["Body"].read()
    except ClientError as error:
        return replace(found, refused=_find_refusal(error, what="read", where=where))
    except BotoCoreError:  # the connection broke, which says nothing about the job
        return found
    return replace(found, not_records=where if key.endswith(".rec") and begin != MAGIC else None)
