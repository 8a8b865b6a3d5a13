"""Looks at a job's data, in S3 or in a folder on a volume, and at its owner, before the job starts."""

from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError
from msgspec import Struct
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connections import on_all
from foundation.errors import ClusterError
from foundation.remote_command import run_program
from foundation.thread_pool import run_in_thread
from provision.aws.clients import Clients, error_code
from train.s3.url import parse_url

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MAX_PAGES = 10
"""The most pages of a listing that are read, a thousand objects each: a job does not wait for all of a large folder."""
FOLDER_TIMEOUT_S = 60.0
# After these errors, the job starts without the answer. botocore raises OSError and ValueError for an invalid CA bundle
# or endpoint.
_UNKNOWN = (ClientError, BotoCoreError, ClusterError, OSError, ValueError)
_TRAINING = "train/"
COUNT_FILES = "import os, sys; print(len(os.listdir(sys.argv[1])) if os.path.isdir(sys.argv[1]) else -1)"


class Data(Struct, frozen=True, kw_only=True):
    """The content of [data] url.

    in_train: the number of .rec files in train/. complete: everything below the URL was counted. exists: the bucket or
    folder is there. others: files next to .rec files where training reads them, in train/ or directly below the URL.
    region: the bucket's; None if it is not known. at_aws: S3 was asked at AWS's own endpoint. refused: what S3 refuses
    to this machine's credentials, with the reason.
    """

    objects: int
    in_train: int = 0
    complete: bool = True
    exists: bool = True
    others: tuple[str, ...] = ()
    region: str | None = None
    at_aws: bool = True
    refused: str | None = None


class Survey(Struct, frozen=True, kw_only=True):
    """What is known of a job's data and owner. data: None if it is not known. region: the job's.

    owner: an ARN, or a user name if the job uses no AWS; None if it is not known.
    results: [data] results, if its bucket does not exist.
    """

    data: Data | None = None
    results: str | None = None
    owner: str | None = None
    region: str | None = None


class Surveyor:
    """Asks AWS in background threads while the command connects to the nodes; `result` waits for the answers.

    clients: None if the job uses no AWS. url, results: [data] url and results, if they are in S3. owner: the job's
    owner if it is not the caller's ARN.
    """

    def __init__(
        self, clients: Clients | None, *, url: str | None, results: str | None = None, owner: str | None = None
    ) -> None:
        self._region = clients.region if clients is not None else None
        self._owner = run_in_thread(lambda: owner or (find_owner(clients) if clients is not None else None))
        self._data = run_in_thread(lambda: find_data(clients, url) if clients is not None and url is not None else None)
        self._results = run_in_thread(lambda: find_missing(clients, results) if clients is not None else None)

    def result(self, timeout_s: float = 10.0) -> Survey:
        """The answers; None for those that took longer than `timeout_s` seconds. Does not raise."""
        pending: list[Future[Any]] = [self._owner, self._data, self._results]
        wait(pending, timeout=timeout_s)
        return Survey(
            data=self._data.result() if self._data.done() else None,
            owner=self._owner.result() if self._owner.done() else None,
            results=self._results.result() if self._results.done() else None,
            region=self._region,
        )


def find_owner(clients: Clients) -> str | None:
    """The caller's ARN, as in the cluster's tags; None if AWS does not answer."""
    try:
        return clients.sts.get_caller_identity()["Arn"]
    except _UNKNOWN:
        return None


def find_missing(clients: Clients, url: str | None) -> str | None:
    """Returns the URL if its bucket does not exist; None if it does, or if that is not known."""
    if url is None:
        return None
    try:
        clients.s3.head_bucket(Bucket=parse_url(url).bucket)
    except ClientError as error:
        return url if error_code(error) in ("404", "NoSuchBucket") else None
    except _UNKNOWN:
        return None
    return None


def find_data(clients: Clients, url: str) -> Data | None:
    """Counts the objects below [data] url and reads a byte of one; None if S3 cannot be asked."""
    try:
        where = parse_url(url)
        return _find_data(clients.s3, where.bucket, where.as_folder().key)
    except _UNKNOWN:
        return None


def _find_data(s3: "S3Client", bucket: str, prefix: str) -> Data:
    what = f"s3://{bucket}/{prefix} cannot be listed"
    try:
        items, complete = _list(s3, bucket, prefix)
        # botocore follows S3's redirects to another region; MXNet's reader does not.
        region = s3.head_bucket(Bucket=bucket).get("BucketRegion")
        at_aws = ".amazonaws.com" in s3.meta.endpoint_url
        data = replace(count(items, complete=complete), region=region, at_aws=at_aws)
        first = next((key for key, size_bytes in items if size_bytes), None)
        if first is not None:
            what = f"s3://{bucket}/{prefix}{first} cannot be read"
            s3.get_object(Bucket=bucket, Key=prefix + first, Range="bytes=0-0")["Body"].close()
    except ClientError as error:
        code, words = error_code(error), error.response["Error"].get("Message", "")
        if code == "NoSuchBucket":
            return Data(objects=0, exists=False)
        if code not in ("AccessDenied", "InvalidObjectState"):  # the latter: archived
            raise
        return Data(objects=0, complete=False, refused=f"{what}: {code}: {words}")
    return data


def _list(s3: "S3Client", bucket: str, prefix: str) -> tuple[list[tuple[str, int]], bool]:
    """The names below the prefix with sizes in bytes, and whether these are all."""
    items: list[tuple[str, int]] = []
    request: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
    for _ in range(MAX_PAGES):
        page = s3.list_objects_v2(**request)
        items += [(item["Key"].removeprefix(prefix), item["Size"]) for item in page.get("Contents", ())]
        if not page.get("IsTruncated"):
            return items, True
        request["ContinuationToken"] = page["NextContinuationToken"]
    return items, False


def count(items: Sequence[tuple[str, int]], *, complete: bool) -> Data:
    """Counts objects, given as names below the URL with sizes in bytes. Pure.

    MXNet reads every non-empty file directly in a folder, whatever its name, and no file in its subfolders.
    """
    names = [name for name, size_bytes in items if size_bytes]
    in_train = [name for name in names if name.startswith(_TRAINING) and name.endswith(".rec")]
    folder = _TRAINING if in_train else ""
    inside = [name for name in names if name.startswith(folder) and "/" not in name.removeprefix(folder)]
    has_records = any(name.endswith(".rec") for name in inside)
    return Data(
        objects=sum(bool(name) and not name.endswith("/") for name, _ in items),
        in_train=len(in_train),
        complete=complete,
        others=tuple(name for name in inside if not name.endswith(".rec")) if has_records else (),
    )


def find_folder_data(nodes: Sequence[ReadyNode], folder: str) -> Data:
    """The content of a folder on a volume. Raises ClusterError if a node cannot read it."""
    counts: dict[str, int] = {}

    def check(node: ReadyNode) -> None:
        command = run_program(node.facts.python, "-c", COUNT_FILES, folder)
        answer = node.connection.run(command, timeout_s=FOLDER_TIMEOUT_S, what=f"looking at {folder}").last_line
        if not answer.removeprefix("-").isdecimal():
            raise ClusterError(f"{node.host.name}: an invalid answer about {folder}: {answer[:80]!r}")
        counts[node.host.name] = int(answer)

    on_all(nodes, check)
    fewest = min(counts.values())
    return Data(objects=max(fewest, 0), exists=fewest >= 0)
