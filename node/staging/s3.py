"""Accesses objects in S3 by obstore, for programs on the nodes with any MXNet wheel, even one without s3://.

    store = Store(os.environ)                      # a job's environment, as provision/aws/s3_access.py creates it
    store.put_file(path, "s3://bucket/folder/key")
    for entry in store.list("s3://bucket/folder/"): store.read_range(entry, 0, 100, take)

Everything after the bucket is the key, with any characters; keys with empty parts, "." or ".." are rejected.
S3 verifies the SHA-256 of uploads. Ignores any proxy in the environment.
"""

from __future__ import annotations

import re
import ssl
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import obstore
from obstore.exceptions import BaseError

from node import instance_credentials
from node.staging.s3_store import Source, Version, find_reason, find_tag, keep_keys, open_store

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, S3Credential, S3Store

Result = TypeVar("Result")
RETRIES = 6  # by obstore; with its pauses, about eight seconds
CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S = 10, 120  # a request moves at most 16 MiB or ONE_PUT_BYTES
# Larger files are sent in parts. Those that a killed program leaves are removed by the rule of `put --create-bucket`.
ONE_PUT_BYTES = 64 << 20
PART_BYTES, PARTS_AT_ONCE = 16 << 20, 4
PIECE_BYTES = 1 << 20
# Keeps reqwest from using the environment's proxy. This address is never contacted: all hosts are excluded.
NO_PROXY: ClientConfig = {"proxy_url": "http://127.0.0.1:9", "proxy_excludes": "*,0.0.0.0/0,::/0"}
_HINTS = {
    "PermanentRedirect": ": the bucket is in another region than {region}",
    "AccessDenied": ": cluster train shows before the start what the job's credentials allow",
    "ExpiredToken": ": the job's credentials have expired",
    "RequestTimeTooSkewed": ": the node's clock is wrong; cluster verify compares the clocks",
    "NoSuchBucket": ": cluster data ls shows your buckets",
}
_AWS_HOST = re.compile(r"s3[a-z0-9.-]*\.amazonaws\.com(\.cn)?")
_STATUS = re.compile(r"status code: (\d{3}) ")


class Entry(NamedTuple):
    """An object in a listing. modified_at: since 1970."""

    url: str
    size_bytes: int
    etag: str
    modified_at: float = 0.0


class StoreError(OSError):
    """A request failed; the text states what, where and why. code: S3's own code, or one of this module.

    https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
    """

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class NotFound(StoreError):
    """The object or the bucket does not exist."""


class Store:
    """The S3 endpoint and credentials of a job's environment. Thread-safe.

    obstore retries requests that may succeed later. Methods raise StoreError (also NotFound), OSError for files on this
    machine, and ValueError for a URL that is not an object's.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.region = _first(env, "S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
        suffix = ".cn" if self.region.startswith("cn-") else ""
        endpoint = _first(env, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT")
        endpoint = endpoint or f"s3.{self.region}.amazonaws.com{suffix}"
        self._endpoint = endpoint if "://" in endpoint else f"https://{endpoint}"
        self._host = self._endpoint.partition("://")[2]
        self._is_aws = _AWS_HOST.fullmatch(self._host) is not None
        self._verified = self._is_aws or env.get("S3_VERIFY_SSL") != "0"
        self._find_keys = _find_keys(env)
        self._stores: dict[str, S3Store] = {}

    def put_file(self, path: str, url: str, version: Version | None = None) -> str:
        """Writes a file's content to an object: all of it or nothing. Returns the object's ETag.

        Raises s3_store.Changed if the file has another version at the end: then the object is as before.
        """

        def put(store: S3Store, key: str) -> str:
            with Source(path, version) as source:
                try:
                    return source.put(
                        store,
                        key,
                        most_bytes=ONE_PUT_BYTES,
                        part_bytes=PART_BYTES,
                        parts_at_once=PARTS_AT_ONCE,
                    )
                except Exception:
                    source.raise_error()
                    raise

        return self._try(url, put)

    def read_range(self, entry: Entry, begin: int, length: int, take: Callable[[int, memoryview], None]) -> None:
        """Reads a range of an object; take(offset, piece) receives the bytes, some perhaps more than once.

        Raises StoreError with the code PreconditionFailed if the object has changed since it was listed.
        """

        def read(store: S3Store, key: str) -> None:
            at = begin
            options = {"range": (begin, begin + length), "if_match": entry.etag}
            for piece in obstore.get(store, key, options=options).stream(PIECE_BYTES):  # type: ignore[arg-type]
                take(at, memoryview(piece))
                at += len(piece)

        self._try(entry.url, read)

    def find(self, url: str) -> Entry | None:
        """Returns the object at a URL, or None."""
        try:
            return _entry(split_object_url(url)[0], self._try(url, obstore.head))
        except NotFound:
            return None

    def list(self, url: str, *, below: bool = True) -> Iterator[Entry]:
        """Returns the objects in a folder, sorted by key. below: include those in subfolders."""
        bucket, prefix = split_url(url)
        folder = prefix.rstrip("/") or None

        def pages(store: S3Store, _: str) -> Sequence[ObjectMeta]:
            if not below:
                return list(obstore.list_with_delimiter(store, folder)["objects"])
            return [item for page in obstore.list(store, folder) for item in page]

        found = (_entry(bucket, item) for item in self._try(url, pages, names_object=False))
        # obstore shows a folder's own marker, `folder/`, under the folder's name.
        inside = (entry for entry in found if not folder or entry.url.startswith(f"s3://{bucket}/{folder}/"))
        return iter(sorted(inside, key=lambda entry: entry.url.encode("utf-8", "surrogateescape")))

    def is_encrypted(self, url: str) -> bool:
        """Whether an object's encryption makes its ETag useless as a digest; obstore does not report this.

        https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
        """
        context = ssl.create_default_context()
        if not self._verified:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            request = urllib.request.Request(self.sign_head(url), method="HEAD")  # noqa: S310 - S3's own address
            with opener.open(request, timeout=CONNECT_TIMEOUT_S) as answer:
                return str(answer.headers.get("x-amz-server-side-encryption", "AES256")) != "AES256"
        except OSError as error:
            raise StoreError(f"{url}: {self._host} cannot be used: {error}", code="Broken") from error

    def sign_head(self, url: str) -> str:
        """Returns an http(s) URL for a HEAD request for an object, valid for a minute."""
        return self._try(url, lambda store, key: obstore.sign(store, "HEAD", key, timedelta(minutes=1)))

    def _open(self, bucket: str) -> S3Store:
        if bucket not in self._stores:
            in_host = self._is_aws and "." not in bucket
            self._stores[bucket] = open_store(
                bucket,
                region=self.region,
                endpoint=f"https://{bucket}.{self._host}" if in_host else self._endpoint,
                find_keys=self._find_keys,
                client={
                    **NO_PROXY,
                    "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
                    "timeout": f"{REQUEST_TIMEOUT_S}s",
                    "allow_invalid_certificates": not self._verified,
                },
                in_host=in_host,
                max_retries=RETRIES,
            )
        return self._stores[bucket]

    def _try(self, url: str, attempt: Callable[[S3Store, str], Result], *, names_object: bool = True) -> Result:
        """Calls `attempt`. Raises StoreError."""
        bucket, key = split_object_url(url) if names_object else split_url(url)
        try:
            return attempt(self._open(bucket), key)
        except (BaseError, FileNotFoundError) as error:
            if getattr(error, "errno", None) is not None:  # a file on this machine
                raise
            raise explain(error, url, host=self._host, region=self.region) from None


def find_instance_keys() -> S3Credential:
    """Returns the credentials of this host's instance profile; obstore calls it again before they expire.

    Raises CredentialsError if there are none.
    """
    found = instance_credentials.wait_for()
    return {
        "access_key_id": found.access_key_id,
        "secret_access_key": found.secret_access_key,
        "token": found.token,
        "expires_at": found.expiration,
    }


def split_url(url: str) -> tuple[str, str]:
    """The bucket and key of s3://BUCKET/KEY; the key may be empty. Raises ValueError for any other URL."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise ValueError(f"{url}: not an S3 URL, which is s3://BUCKET/KEY")
    return bucket, key


def split_object_url(url: str) -> tuple[str, str]:
    """The bucket and key of an object. Raises ValueError if one is missing or obstore would change the key."""
    bucket, key = split_url(url)
    if not key:
        raise ValueError(f"{url}: the object's key is missing")
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise ValueError(f"{url}: a key with empty parts, '.' or '..' cannot be used on the nodes")
    return bucket, key


def _first(env: Mapping[str, str], *names: str) -> str | None:
    return next((env[name] for name in names if env.get(name)), None)


def _find_keys(env: Mapping[str, str]) -> Callable[[], S3Credential]:
    """Returns the function that provides the environment's credentials. Raises StoreError if there are none."""
    if env.get("CLUSTER_DATA_CREDENTIALS") == "instance":
        return find_instance_keys
    access_key = _first(env, "AWS_ACCESS_KEY_ID", "S3_ACCESS_KEY_ID")
    secret_key = _first(env, "AWS_SECRET_ACCESS_KEY", "S3_SECRET_ACCESS_KEY")
    if not access_key or not secret_key:
        raise StoreError("no AWS credentials were found: AWS_ACCESS_KEY_ID is not set", code="NoCredentials")
    return keep_keys(access_key, secret_key, _first(env, "AWS_SESSION_TOKEN", "S3_SESSION_TOKEN"))


def _entry(bucket: str, item: ObjectMeta) -> Entry:
    return Entry(f"s3://{bucket}/{item['path']}", item["size"], item["e_tag"] or "", item["last_modified"].timestamp())


def explain(error: Exception, url: str, *, host: str, region: str) -> StoreError:
    """Returns the StoreError for an error of obstore."""
    words = str(error).partition("\n\nDebug source")[0]
    status = int(found[1]) if (found := _STATUS.search(words)) else 0
    code = find_tag("Code", words) or {403: "AccessDenied", 404: "NoSuchKey"}.get(status, str(status))
    if "External AWS credential provider" in words:
        return StoreError(words.partition("Error: ")[2], code="NoCredentials")
    if "redirect without LOCATION" in words:
        status, code = 301, "PermanentRedirect"
    if "invalid list response" in words:
        return StoreError(f"{url}: what answers is not S3: {words.rpartition(': ')[0]}", code="Malformed")
    if not status:
        return StoreError(f"{url}: {host} cannot be used: {find_reason(str(error)) or words}", code="Broken")
    bucket_region = find_tag("Region", words)
    if bucket_region and bucket_region != region:
        text = f"the bucket is in {bucket_region}, not in {region}: [provision] region in cluster.toml"
        return StoreError(f"{url}: {text} (S3: {status} {code})", code=code)
    message = (find_tag("Message", words) or words.rpartition(f"{status} ")[2].partition(":")[0]).strip()
    kind = NotFound if status == 404 else StoreError
    hint = _HINTS.get(code, "").format(region=region)
    return kind(f"{url}: S3 refuses: {status} {code}, {message}{hint}", code=code)
