"""Looks at a job's data, in S3 or in a folder on a volume, and at its owner, before the job starts."""

from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError
from msgspec import Struct

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connections import on_all
from foundation.errors import ClusterError
from foundation.remote_command import run_program
from foundation.thread_pool import run_in_thread
from provision.aws.clients import Clients, error_code
from train.s3.url import parse_url

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

FOLDER_TIMEOUT_S = 60.0
# After these errors, the job starts without the answer. botocore raises OSError and ValueError for an invalid CA bundle
# or endpoint.
_UNKNOWN = (ClientError, BotoCoreError, ClusterError, OSError, ValueError)
COUNT_FILES = "import os, sys; print(len(os.listdir(sys.argv[1])) if os.path.isdir(sys.argv[1]) else -1)"


class Data(Struct, frozen=True, kw_only=True):
    """The state of [data] url, or of results.

    exists: the bucket or folder is there. is_empty: it has nothing to read. region: the bucket's; None if it is not
    known. at_aws: S3 was asked at AWS's own endpoint. refused: what S3 refuses to this machine's credentials, with the
    reason.
    """

    exists: bool = True
    is_empty: bool = False
    region: str | None = None
    at_aws: bool = True
    refused: str | None = None


class Survey(Struct, frozen=True, kw_only=True):
    """What is known of a job's data and owner. data, results: None if they are not known. region: the job's.

    owner: an ARN, or a user name if the job uses no AWS; None if it is not known.
    """

    data: Data | None = None
    results: Data | None = None
    owner: str | None = None
    region: str | None = None


class Surveyor:
    """Asks AWS in background threads while the command connects to the nodes; `result` waits for the answers.

    clients: None if the job uses no AWS. url, results: those of [data], if they are in S3. owner: the job's owner if
    it is not the caller's ARN.
    """

    def __init__(
        self, clients: Clients | None, *, url: str | None, results: str | None = None, owner: str | None = None
    ) -> None:
        self._region = clients.region if clients is not None else None
        self._owner = run_in_thread(lambda: owner or (find_owner(clients) if clients is not None else None))
        self._data, self._results = (run_in_thread(partial(find_data, clients, one)) for one in (url, results))

    def result(self, timeout_s: float = 10.0) -> Survey:
        """The answers; None for those that took longer than `timeout_s` seconds. Does not raise."""
        pending: list[Future[Any]] = [self._owner, self._data, self._results]
        wait(pending, timeout=timeout_s)
        return Survey(
            data=self._data.result() if self._data.done() else None,
            results=self._results.result() if self._results.done() else None,
            owner=self._owner.result() if self._owner.done() else None,
            region=self._region,
        )


def find_owner(clients: Clients) -> str | None:
    """The caller's ARN, as in the cluster's tags; None if AWS does not answer."""
    try:
        return clients.sts.get_caller_identity()["Arn"]
    except _UNKNOWN:
        return None


def find_data(clients: Clients | None, url: str | None) -> Data | None:
    """Lists a folder and reads a byte of an object; None without a folder, and if S3 cannot be asked."""
    if clients is None or url is None:
        return None
    try:
        where = parse_url(url)
        return _find_data(clients.s3, where.bucket, where.as_folder().key)
    except _UNKNOWN:
        return None


def _find_data(s3: "S3Client", bucket: str, prefix: str) -> Data:
    what = f"s3://{bucket}/{prefix} cannot be listed"
    try:
        listed = s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
        # botocore follows S3's redirects to another region; MXNet's reader does not.
        region = s3.head_bucket(Bucket=bucket).get("BucketRegion")
        at_aws = ".amazonaws.com" in s3.meta.endpoint_url
        first = next((item["Key"] for item in listed if item["Size"]), None)
        if first is not None:
            what = f"s3://{bucket}/{first} cannot be read"
            s3.get_object(Bucket=bucket, Key=first, Range="bytes=0-0")["Body"].close()
    except ClientError as error:
        code, words = error_code(error), error.response["Error"].get("Message", "")
        if code == "NoSuchBucket":
            return Data(exists=False)
        if code not in ("AccessDenied", "InvalidObjectState"):  # the latter: archived
            raise
        return Data(refused=f"{what}: {code}: {words}")
    return Data(is_empty=first is None, region=region, at_aws=at_aws)


def find_folder_data(nodes: Sequence[ReadyNode], folder: str) -> Data:
    """The state of a folder on a volume. Raises ClusterError if a node cannot read it."""

    def count_files(node: ReadyNode) -> int:
        command = run_program(node.facts.python, "-c", COUNT_FILES, folder)
        answer = node.connection.run(command, timeout_s=FOLDER_TIMEOUT_S, what=f"looking at {folder}").last_line
        if not answer.removeprefix("-").isdecimal():
            raise ClusterError(f"{node.host.name}: an invalid answer about {folder}: {answer[:80]!r}")
        return int(answer)

    fewest = min(on_all(nodes, count_files))
    return Data(exists=fewest >= 0, is_empty=fewest <= 0)
