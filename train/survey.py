"""What AWS is asked while the nodes are looked at, so that it costs no time: what there is to read, and who asks."""

import threading
from dataclasses import dataclass

from botocore.exceptions import BotoCoreError, ClientError

from provision.aws import Clients
from provision.errors import ClusterError
from train.s3.url import parse_url

MAX_PAGES = 10
"""Of a listing, a thousand objects each: a job does not wait for the whole of a large folder to be listed."""
# A job can do without these answers. OSError, ValueError: botocore's, for a CA bundle or an endpoint that is none.
_UNKNOWN = (BotoCoreError, ClusterError, OSError, ValueError)
_VALIDATION = ("val/", "validation/", "test/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """What lies in [data] url. records: .rec files, without those of folders for validation; in_train: those of train/.

    complete: all that is there was counted.
    """

    objects: int
    records: int
    in_train: int = 0
    complete: bool = True
    bucket_exists: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """data: None when it is not known, as where this machine may not list it. owner: an ARN, None when not known."""

    data: Data | None = None
    owner: str | None = None


class Surveyor:
    """Looks in a thread of its own, which ends with the program; `result` waits for it."""

    def __init__(self, clients: Clients, *, url: str | None) -> None:
        self._clients = clients
        self._url = url
        self._survey = Survey()
        self._thread = threading.Thread(target=self._look, daemon=True, name="survey")
        self._thread.start()

    def result(self, timeout_s: float = 10.0) -> Survey:
        """What was found; what could not be found within that time is not known. Does not raise."""
        self._thread.join(timeout_s)
        return self._survey

    def _look(self) -> None:
        owner = find_owner(self._clients)
        self._survey = Survey(owner=owner)
        self._survey = Survey(owner=owner, data=find_data(self._clients, self._url) if self._url else None)


def find_owner(clients: Clients) -> str | None:
    """Who asks, as the tags of the cluster have it; None where AWS does not say."""
    try:
        return clients.sts.get_caller_identity()["Arn"]
    except (ClientError, *_UNKNOWN):
        return None


def find_data(clients: Clients, url: str) -> Data | None:
    """Count what lies below [data] url; None when this machine may not, or S3 does not answer."""
    try:
        folder = parse_url(url)
        prefix = folder.key if not folder.key or folder.key.endswith("/") else f"{folder.key}/"
        keys: list[str] = []
        request: dict[str, str] = {}
        for _ in range(MAX_PAGES):
            page = clients.s3.list_objects_v2(Bucket=folder.bucket, Prefix=prefix, **request)  # type: ignore[arg-type]
            keys += [item["Key"].removeprefix(prefix) for item in page.get("Contents", ())]
            if not page.get("IsTruncated"):
                return _count(keys, complete=True)
            request = {"ContinuationToken": page["NextContinuationToken"]}
    except ClientError as error:
        missing = error.response.get("Error", {}).get("Code") == "NoSuchBucket"
        return Data(objects=0, records=0, bucket_exists=False) if missing else None
    except _UNKNOWN:
        return None
    return _count(keys, complete=False)


def _count(keys: list[str], *, complete: bool) -> Data:
    records = [key for key in keys if key.endswith(".rec") and not key.startswith(_VALIDATION)]
    return Data(
        objects=sum(bool(key) and not key.endswith("/") for key in keys),
        records=len(records),
        in_train=sum(key.startswith("train/") for key in records),
        complete=complete,
    )
