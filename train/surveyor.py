"""Asks AWS what there is for a job to read, and who asks, while the nodes are looked at: so it costs no time."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from provision.aws import Clients
from provision.errors import ClusterError
from train.s3.url import parse_url
from train.survey import Data, Refusal, Survey, count

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MAX_PAGES = 10
"""Of a listing, a thousand objects each: a job does not wait for the whole of a large folder to be listed."""
MAGIC = bytes.fromhex("0a23d7ce")
"""What every RecordIO file begins with."""
# A job can do without these answers. OSError, ValueError: botocore's, for a CA bundle or an endpoint that is none.
_UNKNOWN = (BotoCoreError, ClusterError, OSError, ValueError)
# S3's answers that stay the same for whoever has these credentials.
_REFUSALS = frozenset({"AccessDenied", "InvalidObjectState", "AllAccessDisabled", "InvalidRequest"})


class Surveyor:
    """Looks in threads of its own, which end with the program; `result` waits for them."""

    def __init__(self, clients: Clients, *, url: str | None) -> None:
        self._clients = clients
        self._owner: str | None = None
        self._data: Data | None = None
        looks: list[Callable[[], None]] = [self._find_owner]
        if url is not None:
            looks.append(lambda: self._find_data(url))
        self._threads = [threading.Thread(target=look, daemon=True, name="survey") for look in looks]
        for thread in self._threads:
            thread.start()

    def result(self, timeout_s: float = 10.0) -> Survey:
        """What was found; what could not be found within that time is not known. Does not raise."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return Survey(data=self._data, owner=self._owner, region=self._clients.region)

    def _find_owner(self) -> None:
        self._owner = find_owner(self._clients)

    def _find_data(self, url: str) -> None:
        self._data = find_data(self._clients, url)


def find_owner(clients: Clients) -> str | None:
    """Who asks, as the tags of the cluster have it; None where AWS does not say."""
    try:
        return clients.sts.get_caller_identity()["Arn"]
    except (ClientError, *_UNKNOWN):
        return None


def find_data(clients: Clients, url: str) -> Data | None:
    """Count what lies below [data] url, and read a few bytes of it; None when S3 does not answer or cannot be asked."""
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
    """What is there, and the key of what is to be read. Raises ClientError for what passes, or is not known."""
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
    """What the error says, where it would say the same to a job. Raises the error otherwise."""
    said = error.response.get("Error", {})
    if said.get("Code") not in _REFUSALS:
        raise error
    return Refusal(what=what, where=where, code=said["Code"], words=said.get("Message", ""))


def _find_region(s3: "S3Client", bucket: str) -> str | None:
    """Where the bucket is. botocore follows S3's redirects there; MXNet's reader does not."""
    try:
        return s3.head_bucket(Bucket=bucket).get("BucketRegion")
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")


def _read(s3: "S3Client", bucket: str, key: str, found: Data) -> Data:
    """The same, and whether the object's first bytes can be had, and are what they should be."""
    where = f"s3://{bucket}/{key}"
    try:
        begin = s3.get_object(Bucket=bucket, Key=key, Range=f"bytes=0-{len(MAGIC) - 1}")["Body"].read()
    except ClientError as error:
        return replace(found, refused=_find_refusal(error, what="read", where=where))
    except BotoCoreError:  # it broke off: nothing that a job would meet, too
        return found
    return replace(found, not_records=where if key.endswith(".rec") and begin != MAGIC else None)
