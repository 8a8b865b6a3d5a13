"""A connection to S3: where it is and who asks, obstore for content, and botocore for what obstore cannot do.

Where S3 is and who asks is found as by every AWS tool: the environment, AWS_PROFILE, ~/.aws, SSO, an instance's role.
obstore (Rust, outside of Python's lock) lists, gets and puts. botocore follows S3 to another region, explains what S3
refuses, and names objects whose keys obstore would change. botocore's session is imported where it is needed: it takes
a quarter of a second, as long as putting a thousand small files.
"""

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from io import RawIOBase
from json import JSONDecodeError
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import obstore
from botocore.exceptions import BotoCoreError, ClientError
from obstore.exceptions import BaseError

from foundation.errors import AwsError, ConfigError, NotFoundError
from train.node.s3_store import keep_keys, open_store
from train.s3.client import S3Object, explain
from train.s3.url import S3Url

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, S3Credential, S3Store

ATTEMPTS = 5
CONNECTIONS = 8
# What obstore's paths and S3's keys surely mean the same by.
_PLAIN_KEY = re.compile(r"(?!.*//)(?!.*(?:^|/)\.{1,2}(?:/|$))[\w !'()+,./:;=@&$-]*[\w]", re.ASCII)
_BLOCK_BYTES = 2**18
_TIMEOUT_S = 300


def is_plain(key: str) -> bool:
    """Whether obstore names an object as S3 does. Pure."""
    return _PLAIN_KEY.fullmatch(key) is not None


# https://docs.aws.amazon.com/general/latest/gr/s3.html
_OF_A_REGION = re.compile(r"(https://s3(?:-fips)?(?:\.dualstack)?\.)[a-z0-9-]+(\.amazonaws\.com(?:\.cn)?/?)")
_FRESH_FOR = timedelta(minutes=2)
"""For how long obstore keeps what it was given; botocore renews in time what ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Endpoint:
    """How obstore reaches S3. authorities: PEM, beside those of the system. credentials: asked again now and then.

    session: botocore's, where it was asked: with it nobody is asked a second time for a code.
    """

    url: str | None
    authorities: str | None
    credentials: "Callable[[], S3Credential]" = field(repr=False)
    session: Any = field(default=None, repr=False)

    def in_region(self, region: str) -> "S3Endpoint":
        """The same in a region: AWS's addresses are named after theirs. Pure."""
        found = _OF_A_REGION.fullmatch(self.url or "")
        return replace(self, url=f"{found[1]}{region}{found[2]}") if found else self


def find_endpoint(*, region: str) -> S3Endpoint:
    """As botocore would find it. Raises AwsError where there are no credentials, ConfigError for AWS_CA_BUNDLE."""
    env = os.environ
    url = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")
    if env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY") and (url or not _says_more(env)):
        keys = keep_keys(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], env.get("AWS_SESSION_TOKEN") or None)
        return S3Endpoint(url=url, authorities=_read_authorities(env.get("AWS_CA_BUNDLE")), credentials=keys)
    return _ask_botocore(region)


def _says_more(env: Mapping[str, str]) -> bool:
    """Whether something but a URL in the environment may say where S3 is.

    A profile may name an endpoint or one of AWS's other kinds, in either of the two files, and a bundle.
    """
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
        # First: in its region STS is asked, too, for the keys of an assumed role. Its endpoint is that of
        # AWS_ENDPOINT_URL, of a profile's endpoint_url, or AWS's own for the region.
        url = session.create_client("s3", region_name=region).meta.endpoint_url
        credentials: Any = session.get_credentials()
        bundle = session.get_config_variable("ca_bundle")
        if credentials is None:
            raise AwsError("no AWS credentials were found", hint="aws configure, or set AWS_PROFILE")
        credentials.get_frozen_credentials()  # here, and once: a code may be asked for, or all of it may be in vain

    def fresh() -> "S3Credential":
        with _explained():
            frozen = credentials.get_frozen_credentials()
        until = datetime.now(UTC) + _FRESH_FOR
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": min(until, getattr(credentials, "_expiry_time", None) or until),
        }

    return S3Endpoint(url=url, authorities=_read_authorities(bundle), credentials=fresh, session=session)


@contextmanager
def _explained() -> Iterator[None]:
    """Raises AwsError for what it may come to when keys are asked for: programs, files, services and people are."""
    try:
        yield
    except (BotoCoreError, ClientError, EOFError, JSONDecodeError, OSError) as error:
        raise explain(error, "connect", bucket=None, key=None) from error


def _read_authorities(path: str | None) -> str | None:
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="ascii", errors="ignore")
    except OSError as error:
        raise ConfigError(f'AWS_CA_BUNDLE = "{path}": cannot be read: {error.strerror}') from error


class UnsureError(Exception):
    """obstore cannot do it, or S3 has refused: botocore does it, or says why not."""


class Connection:
    """S3 in a region. Its methods may be called by several threads at once."""

    def __init__(self, *, region: str) -> None:
        self.region = region
        self._stores: dict[str, S3Store] = {}
        self._regions: dict[str, str] = {}  # of buckets that are elsewhere
        self._lock = threading.RLock()

    @cached_property
    def _endpoint(self) -> S3Endpoint:
        return find_endpoint(region=self.region)

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
        if folder.key and not (folder.key.endswith("/") and is_plain(folder.key[:-1])):
            raise UnsureError
        try:
            for page in obstore.list(self._store(folder.bucket), folder.key.rstrip("/") or None):
                yield from page
        except (BaseError, OSError) as error:
            raise UnsureError from error

    def find_object(self, url: S3Url) -> S3Object | None:
        """The object of this name, or None. Raises UnsureError."""
        if not is_plain(url.key):
            raise UnsureError
        try:
            item = obstore.head(self._store(url.bucket), url.key)
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise UnsureError from error
        return _object(url.bucket, item) if item["e_tag"] else None

    def put(self, url: S3Url, content: bytes | RawIOBase, *, part_bytes: int, parts_at_once: int) -> None:
        """Put an object; S3 verifies its SHA-256, that of each part where it is sent in parts.

        content: all of it, or a file that is read to its end, in parts. Raises UnsureError, and what reading raises.
        """
        if not is_plain(url.key):
            raise UnsureError
        in_parts = not isinstance(content, bytes)
        try:
            obstore.put(
                self._store(url.bucket),
                url.key,
                content,
                use_multipart=in_parts,
                chunk_size=part_bytes,
                max_concurrency=parts_at_once,
            )
        except (BaseError, OSError) as error:
            raise UnsureError from error

    def get_range(self, url: S3Url, begin: int, length: int, *, etag: str) -> Iterator[memoryview]:
        """The bytes of a range, in blocks, of the object of this ETag. Raises UnsureError, also in the middle."""
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
        try:
            response: dict[str, Any] = getattr(self._client, method)(**request)
        except (ClientError, BotoCoreError, OSError) as error:
            raise explain(error, method, bucket=request.get("Bucket"), key=request.get("Key")) from error
        if told := response["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region"):
            self._note_region(request["Bucket"], told)
        return response

    def put_by_botocore(self, url: S3Url, file: RawIOBase, *, part_bytes: int) -> None:
        """Put what obstore cannot, or what S3 has refused once: slower, and with S3's words where it is refused again.

        Raises ClusterError's kinds, and what reading raises.
        """
        from s3transfer.exceptions import S3UploadFailedError  # noqa: PLC0415 - see the top
        from s3transfer.manager import TransferConfig, TransferManager  # noqa: PLC0415 - see the top

        config = TransferConfig(
            multipart_threshold=part_bytes + 1, multipart_chunksize=part_bytes, max_request_concurrency=2
        )
        try:
            with TransferManager(self._client, config) as manager:
                manager.upload(
                    cast("IO[bytes]", file), url.bucket, url.key, extra_args={"ChecksumAlgorithm": "SHA256"}
                ).result()
        except (ClientError, BotoCoreError, S3UploadFailedError, OSError) as error:
            raise explain(error, "put_object", bucket=url.bucket, key=url.key) from error

    def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        """Delete an unfinished upload's parts, unless they are gone. Raises AwsError."""
        try:
            self.call("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload_id)
        except NotFoundError:
            return

    def _note_region(self, bucket: str, told: str) -> None:
        """That obstore asks there, which does not follow S3 to another region, as botocore does."""
        with self._lock:
            if told != self._find_region(bucket):
                self._regions[bucket] = told
                self._stores.pop(bucket, None)

    def _find_region(self, bucket: str) -> str:
        """A bucket's region, as far as it is known."""
        with self._lock:
            return self._regions.get(bucket, self.region)

    def find_headers(self, url: S3Url, *, etag: str | None = None, part: int | None = None) -> Mapping[str, str]:
        """What S3 says about an object, of this ETag, or about a part of it; checksums included.

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
