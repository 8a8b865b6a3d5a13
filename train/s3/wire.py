"""The fast ways to S3, for bulk: any thread may use them, and each is loaded where it is needed first.

exchange.py puts small objects, several thousand a second. obstore (Rust, outside of Python's lock) lists, and gets
small objects and ranges of large ones. botocore puts large ones in parts: its own share of the time vanishes there, and
it can do what obstore cannot, which is to go on with an upload that was begun before, and to say and ask for the
checksum of all bytes; and it does over what the others are not sure of. It is of the AWS SDKs' quality, and is not
loaded where it is not needed. What s3fs takes (half a second, and one core) is why it is not here.
"""

import re
import threading
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from train.s3.access import S3Endpoint, find_endpoint
from train.s3.client import S3Object, explain
from train.s3.exchange import Exchange, UnsureError
from train.s3.lanes import Talk
from train.s3.url import S3Url

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, S3Config, S3Store

ATTEMPTS = 5
# What obstore's paths and S3's keys surely mean the same by.
_PLAIN_KEY = re.compile(r"(?!.*//)(?!.*(?:^|/)\.{1,2}(?:/|$))[\w !'()+,./:;=@&$-]*[\w]", re.ASCII)
_BLOCK_BYTES = 2**18
_TIMEOUT_S = 300


def is_plain(key: str) -> bool:
    """Whether obstore names an object as S3 does. Pure."""
    return _PLAIN_KEY.fullmatch(key) is not None


class Wire:
    """S3 in a region. Its methods may be called by several threads at once."""

    def __init__(self, *, region: str, connections: int) -> None:
        self._region = region
        self._connections = connections
        self._stores: dict[str, S3Store] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._regions: dict[str, str] = {}  # of buckets that are elsewhere
        self._lock = threading.RLock()

    @cached_property
    def _endpoint(self) -> S3Endpoint:
        return find_endpoint(region=self._region)

    @property
    def endpoint(self) -> str:
        """Which S3 it is."""
        return self._endpoint.url or "AWS"

    def list_folder(self, folder: S3Url) -> Iterator[S3Object]:
        """The objects below a folder or in a bucket, in no order. Raises UnsureError.

        obstore does not tell the marker of a folder, `a/`, from an empty object `a`: unsure where one is empty, and
        where it can be the listed folder's own alone.
        """
        for item in self._list(folder):
            if not item["size"] or not item["e_tag"] or not item["path"].startswith(folder.key):
                raise UnsureError
            yield _object(folder.bucket, item)

    def _list(self, folder: S3Url) -> Iterator[Mapping[str, Any]]:
        import obstore  # noqa: PLC0415 - see the top
        from obstore.exceptions import BaseError  # noqa: PLC0415 - see the top

        if folder.key and not (folder.key.endswith("/") and is_plain(folder.key[:-1])):
            raise UnsureError
        try:
            for page in obstore.list(self._store(folder.bucket), folder.key.rstrip("/") or None):
                yield from page
        except (BaseError, OSError) as error:
            raise UnsureError from error

    def find_object(self, url: S3Url) -> S3Object | None:
        """The object of this name, or None. Raises UnsureError."""
        import obstore  # noqa: PLC0415 - see the top
        from obstore.exceptions import BaseError  # noqa: PLC0415 - see the top

        if not is_plain(url.key):
            raise UnsureError
        try:
            item = obstore.head(self._store(url.bucket), url.key)
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise UnsureError from error
        return _object(url.bucket, item) if item["e_tag"] else None

    def put_small(self, url: S3Url, content: bytes, crc32: str) -> Talk[Mapping[str, str]]:
        """Put an object; what S3 says about it. crc32: as S3 writes it. Raises UnsureError, AwsError."""
        return self._exchange(url.bucket).talk("PUT", url, {"x-amz-checksum-crc32": crc32}, content)

    def get_small(self, url: S3Url, *, etag: str) -> bytes:
        """An object's content, if it is still the one of this ETag. Raises UnsureError."""
        import obstore  # noqa: PLC0415 - see the top
        from obstore.exceptions import BaseError  # noqa: PLC0415 - see the top

        if not is_plain(url.key):
            raise UnsureError
        try:
            return bytes(obstore.get(self._store(url.bucket), url.key, options={"if_match": etag}).bytes())
        except (BaseError, OSError) as error:
            raise UnsureError from error

    def get_range(self, url: S3Url, begin: int, length: int, *, etag: str) -> Iterator[memoryview]:
        """The bytes of a range, in blocks, of the object of this ETag. Raises UnsureError, also in the middle."""
        import obstore  # noqa: PLC0415 - see the top
        from obstore.exceptions import BaseError  # noqa: PLC0415 - see the top

        if not is_plain(url.key):
            raise UnsureError
        options: GetOptions = {"range": (begin, begin + length), "if_match": etag}
        try:
            for block in obstore.get(self._store(url.bucket), url.key, options=options).stream(_BLOCK_BYTES):
                yield memoryview(block)
        except (BaseError, OSError) as error:
            raise UnsureError from error

    def call(self, method: str, **request: Any) -> dict[str, Any]:
        """One call by botocore, repeated where that helps. Raises ClusterError's kinds."""
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - see the top
        from urllib3.exceptions import HTTPError  # noqa: PLC0415 - see the top

        try:
            response: dict[str, Any] = getattr(self._client, method)(**request)
        except (ClientError, BotoCoreError, HTTPError, OSError) as error:
            raise explain(error, method, bucket=request.get("Bucket"), key=request.get("Key")) from error
        self._note_region(request["Bucket"], response["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region"))
        return response

    def _note_region(self, bucket: str, told: str | None) -> None:
        """That obstore asks there, which does not follow S3 to another region, as botocore does."""
        with self._lock:
            if told and told != self._find_region(bucket):
                self._regions[bucket] = told
                self._stores.pop(bucket, None)

    def _find_region(self, bucket: str) -> str:
        """A bucket's region, as far as it is known."""
        with self._lock:
            return self._regions.get(bucket, self._region)

    def find_headers(self, url: S3Url, *, etag: str | None = None, part: int | None = None) -> Mapping[str, str]:
        """What S3 says about an object, of this ETag, or about a part of it; checksums included.

        Raises NotFoundError, AwsError.
        """
        if part is None:
            asked = {"x-amz-checksum-mode": "ENABLED"} | ({"If-Match": etag} if etag else {})
            try:
                return self._exchange(url.bucket).ask("HEAD", url, asked)
            except UnsureError:
                pass
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
            region_name=self._region,
            config=Config(
                max_pool_connections=self._connections,
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                # Each body's CRC-32 is sent with it, as a signed header: no need to hash it a second time.
                s3={"payload_signing_enabled": False},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def _exchange(self, bucket: str) -> Exchange:
        region = self._find_region(bucket)
        with self._lock:
            if region not in self._exchanges:
                self._exchanges[region] = Exchange(self._endpoint.in_region(region), region=region)
            return self._exchanges[region]

    def _store(self, bucket: str) -> "S3Store":
        from obstore.store import S3Store  # noqa: PLC0415 - see the top

        with self._lock:
            if bucket not in self._stores:
                region = self._find_region(bucket)
                endpoint = self._endpoint.in_region(region)
                options: ClientConfig = {"timeout": f"{_TIMEOUT_S}s"}
                if endpoint.url and endpoint.url.startswith("http://"):
                    options["allow_http"] = True
                if endpoint.authorities:
                    options["root_certificate"] = endpoint.authorities
                config: S3Config = {"region": region}
                if endpoint.url:
                    config["endpoint"] = endpoint.url
                self._stores[bucket] = S3Store(
                    bucket,
                    config=config,
                    credential_provider=endpoint.credentials,
                    client_options=options,
                    retry_config={"max_retries": ATTEMPTS - 1},
                )
            return self._stores[bucket]


def _object(bucket: str, item: Mapping[str, Any]) -> S3Object:
    url = S3Url(bucket=bucket, key=item["path"])
    return S3Object(url=url, size_bytes=item["size"], modified=item["last_modified"], etag=item["e_tag"])
