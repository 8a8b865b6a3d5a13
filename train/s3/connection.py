"""A connection to S3: endpoint and credentials, obstore for content, and botocore for what obstore cannot do.

The endpoint and the credentials are those that every AWS tool finds: the environment, AWS_PROFILE, ~/.aws, SSO, an
instance's role. obstore (in Rust, without Python's global lock) lists, gets and puts. botocore follows S3's redirects
to another region, lists and gets keys that obstore does not take, and makes all other calls. Its session is imported
only where it is needed: the import takes a quarter of a second, as long as putting a thousand small files.
"""

import dataclasses
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from obstore.exceptions import BaseError, UnauthenticatedError

from foundation.errors import ClusterError
from node.staging.s3_store import Source, keep_keys, open_store
from provision.aws.credentials import find_bundle, read_authorities, read_credentials
from train.s3.errors import explain, explain_obstore
from train.s3.url import S3Object, S3Url, explain_key

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, S3Credential, S3Store

ATTEMPTS = 5
CONNECTIONS = 8
_BLOCK_BYTES = 2**18
_TIMEOUT_S = 300


def is_plain(key: str) -> bool:
    """Whether obstore takes this key: it reads a key as a path. Pure."""
    return not key.endswith("/") and not explain_key(key)


# https://docs.aws.amazon.com/general/latest/gr/s3.html
_OF_A_REGION = re.compile(r"(https://s3(?:-fips)?(?:\.dualstack)?\.)(?:[a-z0-9-]+\.)?(amazonaws\.com(?:\.cn)?/?)")
_FRESH_FOR = timedelta(minutes=2)
"""How long obstore keeps credentials before it asks again; botocore renews them in time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Endpoint:
    """How obstore reaches S3. authorities: CAs as PEM, in addition to the system's. credentials: called regularly.

    session: botocore's, if one was opened: if it is used again, it does not ask for another MFA code.
    """

    url: str | None
    authorities: str | None
    credentials: "Callable[[], S3Credential]" = field(repr=False)
    session: Any = field(default=None, repr=False)

    def in_region(self, region: str) -> "S3Endpoint":
        """The endpoint in another region, whose name is part of AWS's addresses. Pure."""
        found = _OF_A_REGION.fullmatch(self.url or "")
        return dataclasses.replace(self, url=f"{found[1]}{region}.{found[2]}") if found else self


def find_endpoint(*, region: str) -> S3Endpoint:
    """The endpoint, as botocore finds it. Raises AwsError without credentials, ConfigError for a bad CA bundle."""
    env = os.environ
    url = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")
    bundle = env.get("AWS_CA_BUNDLE") or env.get("REQUESTS_CA_BUNDLE")
    is_set = (url and bundle) or not _may_set_endpoint(env)
    if env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY") and is_set:
        keys = keep_keys(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], env.get("AWS_SESSION_TOKEN") or None)
        return S3Endpoint(url=url, authorities=read_authorities(bundle), credentials=keys)
    return _ask_botocore(region)


def _may_set_endpoint(env: Mapping[str, str]) -> bool:
    """Whether another variable, or a profile in one of the two files, may set the endpoint, its kind or a CA bundle."""
    if env.get("AWS_USE_FIPS_ENDPOINT") or env.get("AWS_USE_DUALSTACK_ENDPOINT"):
        return True
    files = (
        env.get("AWS_CONFIG_FILE") or "~/.aws/config",
        env.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
    )
    return any(Path(file).expanduser().exists() for file in files)


def _ask_botocore(region: str) -> S3Endpoint:
    from botocore.session import get_session  # noqa: PLC0415 - see the top

    with _explained():
        session = get_session()
        session.set_config_variable("region", region)  # that of STS, and of the sign-in service
        if read_credentials(session) is None:  # here, once: this may ask for an MFA code, or fail
            raise NoCredentialsError
        credentials: Any = session.get_credentials()
        # It comes from AWS_ENDPOINT_URL, from a profile's endpoint_url, or is AWS's own for the region.
        url = session.create_client("s3", region_name=region).meta.endpoint_url

    def fresh() -> "S3Credential":
        with _explained():
            frozen = read_credentials(session)
        until = datetime.now(UTC) + _FRESH_FOR
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": min(until, getattr(credentials, "_expiry_time", None) or until),
        }

    return S3Endpoint(url=url, authorities=read_authorities(find_bundle()), credentials=fresh, session=session)


@contextmanager
def _explained() -> Iterator[None]:
    """Raises AwsError for any failure while botocore asks programs, files, services and the user for keys."""
    try:
        yield
    except (BotoCoreError, ClientError, EOFError) as error:
        raise explain(error, "connect", bucket=None, key=None) from error


class UnsureError(Exception):
    """obstore cannot list this, or S3 refused: botocore then does it, or explains why not."""


class Connection:
    """S3 in a region. Thread-safe."""

    def __init__(self, *, region: str) -> None:
        self.region = region
        self._stores: dict[str, S3Store] = {}
        self._regions: dict[str, str] = {}  # of buckets in other regions
        self._lock = threading.RLock()

    @cached_property
    def _endpoint(self) -> S3Endpoint:
        return find_endpoint(region=self.region)

    @property
    def endpoint(self) -> str:
        """The URL of this S3, or "AWS"."""
        return self._endpoint.url or "AWS"

    def list_objects(
        self, folder: S3Url, *, only: Collection[S3Url] | None = None, limit: int | None = None, exact: bool = False
    ) -> list[S3Object]:
        """The objects whose keys begin with the URL's, sorted, with folder markers. Raises ClusterError or a subclass.

        only: return only these, so that the others take no memory. limit: return only so many. exact: by botocore, for
        example before a deletion: obstore shows an object `a/` with content as `a`.
        """
        if not exact:
            try:
                listed = islice(self._list(folder), limit)
                found = [item for item in listed if only is None or item.url in only]
                return sorted(found, key=lambda item: item.url)
            except UnsureError:
                pass  # botocore can, or says why not
        pages = self._pages(folder, limit)
        objects = (_read_object(folder.bucket, item) for page in pages for item in page.get("Contents", ()))
        return [item for item in objects if only is None or item.url in only]

    def list_level(self, folder: S3Url) -> list[S3Object | S3Url]:
        """The direct contents of a folder: objects, and subfolders as URLs. Raises ClusterError or a subclass."""
        entries: list[S3Object | S3Url] = []
        for page in self._pages(folder, None, Delimiter="/"):
            entries += [S3Url(bucket=folder.bucket, key=item["Prefix"]) for item in page.get("CommonPrefixes", ())]
            entries += [_read_object(folder.bucket, item) for item in page.get("Contents", ())]
        return entries

    def _pages(self, folder: S3Url, limit: int | None, **request: Any) -> Iterator[dict[str, Any]]:
        request |= {"Bucket": folder.bucket, "Prefix": folder.key, "MaxKeys": limit or 1000}
        while True:
            page = self.call("list_objects_v2", **request)
            yield page
            if limit or not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def _list(self, folder: S3Url) -> Iterator[S3Object]:
        """The objects, unsorted, by obstore. Raises UnsureError.

        obstore shows a folder's marker `a/` as an empty object `a`. So this also raises UnsureError if an object is
        empty, or can only be the marker of the listed folder.
        """
        if folder.key and not (folder.key.endswith("/") and is_plain(folder.key[:-1])):
            raise UnsureError
        try:
            for page in obstore.list(self._store(folder.bucket), folder.key.rstrip("/") or None):
                for item in page:
                    if not item["size"] or not item["e_tag"] or not item["path"].startswith(folder.key):
                        raise UnsureError
                    yield _object(folder.bucket, item)
        except (BaseError, OSError) as error:
            raise UnsureError from error

    def find_object(self, url: S3Url) -> S3Object | None:
        """The object of exactly this name, or None. Raises ClusterError or a subclass."""
        if is_plain(url.key):
            try:
                item = obstore.head(self._store(url.bucket), url.key)
                return _object(url.bucket, item) if item["e_tag"] else None
            except FileNotFoundError:
                return None
            except (BaseError, OSError):
                pass  # botocore can, or says why not
        # A key sorts before every longer one that begins with it.
        found = self.list_objects(url, limit=1, exact=True)
        return found[0] if found and found[0].url == url else None

    def put(self, url: S3Url, source: Source, *, part_bytes: int, parts_at_once: int) -> None:
        """Puts an object; S3 verifies its SHA-256, or that of each part.

        part_bytes: larger files are sent in parts of this size. Raises ClusterError or a subclass, and what reading the
        file raises.
        """
        try:
            source.put(
                self._store(url.bucket),
                url.key,
                most_bytes=part_bytes,
                part_bytes=part_bytes,
                parts_at_once=parts_at_once,
            )
        except (BaseError, OSError) as error:
            source.raise_error()
            raise self._explain(error, "put_object", url) from error

    def get_range(self, url: S3Url, begin: int, length: int, *, etag: str) -> Iterator[memoryview]:
        """The blocks of a range, if the object has this ETag.

        obstore requests the rest again if the connection breaks. Raises ClusterError or a subclass.
        """
        if not is_plain(url.key):
            yield memoryview(self.read(url, Range=f"bytes={begin}-{begin + length - 1}", IfMatch=etag))
            return
        options: GetOptions = {"range": (begin, begin + length), "if_match": etag}
        try:
            for block in obstore.get(self._store(url.bucket), url.key, options=options).stream(_BLOCK_BYTES):
                yield memoryview(block)
        except (BaseError, OSError) as error:
            raise self._explain(error, "get_object", url) from error

    def _explain(self, error: Exception, method: str, url: S3Url) -> ClusterError:
        if isinstance(error, UnauthenticatedError):
            self._endpoint.credentials()  # raises the error that obstore hides
        return explain_obstore(error, method, bucket=url.bucket, key=url.key)

    def call(self, method: str, **request: Any) -> dict[str, Any]:
        """One call by botocore, retried where that helps. Raises ClusterError or a subclass."""
        try:
            response: dict[str, Any] = getattr(self._client, method)(**request)
        except (ClientError, BotoCoreError, OSError) as error:
            raise explain(error, method, bucket=request.get("Bucket"), key=request.get("Key")) from error
        if region := response["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region"):
            self._note_region(request["Bucket"], region)
        return response

    def read(self, url: S3Url, *, most_bytes: int | None = None, **request: Any) -> bytes:
        """The content of a small object, or a range of one. Raises ClusterError or a subclass."""
        body = self.call("get_object", Bucket=url.bucket, Key=url.key, **request)["Body"]
        try:
            with body:
                content: bytes = body.read(most_bytes)
        except (BotoCoreError, OSError) as error:
            raise explain(error, "get_object", bucket=url.bucket, key=url.key) from error
        return content

    def _note_region(self, bucket: str, region: str) -> None:
        """Has obstore use the bucket's region: unlike botocore, it does not follow S3's redirects to another one."""
        with self._lock:
            if region != self._find_region(bucket):
                self._regions[bucket] = region
                self._stores.pop(bucket, None)

    def _find_region(self, bucket: str) -> str:
        """A bucket's region, as far as known."""
        with self._lock:
            return self._regions.get(bucket, self.region)

    def find_headers(self, url: S3Url, *, etag: str | None = None, part: int | None = None) -> Mapping[str, str]:
        """The headers of an object with this ETag, or of one of its parts, with checksums.

        Raises NotFoundError, AwsError.
        """
        more = ({"IfMatch": etag} if etag else {}) | ({"PartNumber": part} if part else {})
        response = self.call("head_object", Bucket=url.bucket, Key=url.key, ChecksumMode="ENABLED", **more)
        headers: Mapping[str, str] = response["ResponseMetadata"]["HTTPHeaders"]
        return headers

    @property
    def _client(self) -> Any:
        with self._lock:
            return self._botocore

    @cached_property
    def _botocore(self) -> Any:
        from botocore.config import Config  # noqa: PLC0415 - see the top
        from botocore.session import get_session  # noqa: PLC0415 - see the top

        return (self._endpoint.session or get_session()).create_client(
            "s3",
            region_name=self.region,
            config=Config(
                max_pool_connections=CONNECTIONS,
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def _store(self, bucket: str) -> "S3Store":
        with self._lock:
            if bucket not in self._stores:
                region = self._find_region(bucket)
                endpoint = self._endpoint.in_region(region)
                client: ClientConfig = {"timeout": f"{_TIMEOUT_S}s"}
                if endpoint.authorities:
                    client["root_certificate"] = endpoint.authorities
                self._stores[bucket] = open_store(
                    bucket,
                    region=region,
                    endpoint=endpoint.url,
                    find_keys=endpoint.credentials,
                    client=client,
                    max_retries=ATTEMPTS - 1,
                )
            return self._stores[bucket]


def _object(bucket: str, item: Mapping[str, Any]) -> S3Object:
    url = S3Url(bucket=bucket, key=item["path"])
    return S3Object(url=url, size_bytes=item["size"], modified=item["last_modified"], etag=item["e_tag"])


def _read_object(bucket: str, item: dict[str, Any]) -> S3Object:
    """An object of botocore's listing. Pure."""
    return S3Object(
        url=S3Url(bucket=bucket, key=item["Key"]),
        size_bytes=item["Size"],
        modified=item["LastModified"],
        etag=item["ETag"],
    )
