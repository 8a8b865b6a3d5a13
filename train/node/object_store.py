"""Objects in S3, for programs on the nodes: with every MXNet wheel, also those that cannot read s3:// themselves.

    store = Store(os.environ)                      # a job's environment, as train/s3/environment.py makes it
    store.put_file(path, "s3://bucket/folder/key")
    for entry in store.list("s3://bucket/folder/"): store.get_file(entry.url, path)

What is after the bucket is the key as it is, whatever characters it has. Every request is signed together with the
SHA-256 of what it carries, so that S3 refuses what arrives damaged; S3 keeps that, and what is read is compared with
it. No proxy is asked, whatever the environment says.

Python 3.6 and later, standard library only.
"""

import base64
import calendar
import hashlib
import os
import random
import re
import time
import urllib.parse
import xml.etree.ElementTree as ET
from typing import NamedTuple

import aws_signature
import object_wire
from object_wire import NotFound, StoreError  # noqa: F401 - for those who import this module

ATTEMPTS = 6
FIRST_PAUSE_S = 0.3  # before the second attempt, twice as long before every further one, times a random number up to 1
MAX_PAUSE_S = 8.0
MAX_PUT_BYTES = 5 * 1024**3  # https://docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html
CHUNK_BYTES = 1 << 20
SMALL_BYTES = 64 << 20  # what get_bytes takes into memory at most
CHECKSUM = "x-amz-checksum-sha256"
# Where the bucket can stand in front of the host's name: https://bucket.s3.REGION.amazonaws.com/key
AWS_HOST = re.compile(r"s3[a-z0-9.-]*\.amazonaws\.com(\.cn)?")


class Entry(NamedTuple):
    """An object as a listing shows it; modified: seconds since the epoch."""

    url: str
    size_bytes: int
    modified: int
    etag: str


class Store(object):
    """S3 as a job's environment variables describe it, and who asks. For any thread.

    Its methods try again what may go well another time, ATTEMPTS times in all. They raise StoreError, NotFound among
    its kinds, and OSError for files on this machine.
    """

    def __init__(self, env, find_keys=None):
        """find_keys: gives the Keys for each request, in place of those of the environment. It may raise OSError."""
        self.region = _first(env, "S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
        suffix = ".cn" if self.region.startswith("cn-") else ""
        endpoint = _first(env, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT")
        endpoint = endpoint or "s3.%s.amazonaws.com%s" % (self.region, suffix)
        parts = urllib.parse.urlsplit(endpoint if "://" in endpoint else "https://" + endpoint)
        self._secure = parts.scheme != "http"
        self._context = None  # for TLS; slow to make
        self._host = parts.netloc
        self._is_aws = AWS_HOST.fullmatch(self._host) is not None
        self._verified = self._is_aws or env.get("S3_VERIFY_SSL") != "0"
        if find_keys is None:
            keys = _keys_of(env)
            find_keys = lambda: keys  # noqa: E731 - the one line that there is to it
        self._find_keys = find_keys

    def put_file(self, path, url):
        """Write a file's content, as long as it is now, to an object: complete, or not at all. 5 GiB at most."""
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > MAX_PUT_BYTES:
                raise StoreError(
                    "%s is larger than the 5 GiB that one object can be written with: it is not in S3" % path,
                    code="EntityTooLarge",
                )
            self._put(url, stream, size, _digest(stream, size))

    def put_bytes(self, data, url):
        """Write bytes to an object."""
        self._put(url, data, len(data), hashlib.sha256(data))

    def get_file(self, url, path):
        """Read an object into a file: whole under its name, or not at all; returns its size in bytes."""
        temporary = "%s.%d-%08x.part" % (path, os.getpid(), random.getrandbits(32))
        try:
            with open(temporary, "wb") as sink:
                self._read(url, sink)
                sink.flush()
                os.fsync(sink.fileno())
                size = sink.tell()
            os.rename(temporary, path)
        finally:
            if os.path.exists(temporary):
                os.remove(temporary)
        return size

    def get_bytes(self, url):
        """An object's content. Raises StoreError for one of more than SMALL_BYTES, too."""
        sink = _Memory(url)
        self._read(url, sink)
        return b"".join(sink.parts)

    def list(self, url, delimiter=""):
        """The objects whose URLs begin with this one, as Entry, in the order of their keys; asks as it goes.

        delimiter: leaves out those that have it further on.
        """
        bucket, prefix = split_url(url)
        query = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
        if delimiter:
            query["delimiter"] = delimiter
        while query is not None:
            request = self._request("GET", bucket, "", query, {})
            entries, following = _parse_page(
                self._try(url, lambda asked=request: self._send(asked).read()), url, bucket
            )
            yield from entries
            query = following and dict(query, **{"continuation-token": following})

    def delete(self, url):
        """Delete an object; one that is not there is no error."""
        bucket, key = split_object_url(url)
        request = self._request("DELETE", bucket, key, {}, {})
        self._try(url, lambda: self._send(request).read())

    # -- requests ------------------------------------------------------------------------------------------------

    def _put(self, url, body, size, digest):
        bucket, key = split_object_url(url)
        headers = {"Content-Length": str(size), "x-amz-sdk-checksum-algorithm": "SHA256"}
        headers[CHECKSUM] = base64.b64encode(digest.digest()).decode("ascii")
        request = self._request("PUT", bucket, key, {}, headers)._replace(payload_sha256=digest.hexdigest())

        def attempt():
            answer = self._send(request, body, size)
            answer.read()
            stored = answer.header(CHECKSUM)
            if stored and stored != headers[CHECKSUM]:
                raise object_wire.Broken("what it stored has another SHA-256 than what was sent", passing=True)

        self._try(url, attempt)

    def _read(self, url, sink):
        """Write an object to `sink`, which is emptied first, and compare it with what S3 knows of it."""
        bucket, key = split_object_url(url)
        request = self._request("GET", bucket, key, {}, {"x-amz-checksum-mode": "ENABLED"})

        def attempt():
            sink.seek(0)
            sink.truncate()
            answer = self._send(request)
            expected = answer.header(CHECKSUM)
            digest = hashlib.sha256()
            for chunk in answer.chunks(CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)
            # One that was written in parts has the checksum of its parts' checksums, and their number after it.
            if expected and "-" not in expected and base64.b64decode(expected) != digest.digest():
                raise object_wire.Broken("it was damaged on the way: its SHA-256 is another", passing=True)

        self._try(url, attempt)

    def _request(self, method, bucket, key, query, headers):
        """A request without a body."""
        in_host = self._is_aws and "." not in bucket
        return aws_signature.Request(
            method=method,
            host="%s.%s" % (bucket, self._host) if in_host else self._host,
            path="/" + aws_signature.encode(key if in_host else "%s/%s" % (bucket, key), safe="/"),
            query=aws_signature.encode_query(query),
            headers=headers,
            payload_sha256=aws_signature.EMPTY_SHA256,
        )

    def _send(self, request, body=b"", size=0):
        """Sign a request and send it; the answer, which is no refusal. Raises Broken and Refused of object_wire."""
        signed = aws_signature.sign(request, self._find_keys(), self.region, time.time())
        target = request.path + ("?" + request.query if request.query else "")
        if self._secure and self._context is None:
            self._context = object_wire.make_context(verified=self._verified)
        exchange = object_wire.Exchange(request.host, self._context)
        return exchange.send(request.method, target, signed, object_wire.pieces(body, size))

    def _try(self, url, attempt):
        """What `attempt` returns, after as many attempts as it takes. Raises StoreError."""
        number = 0
        while True:
            number += 1
            try:
                return attempt()
            except object_wire.Refused as refusal:
                if number == ATTEMPTS or not refusal.passing:
                    raise object_wire.explain(refusal, url, self.region) from None
            except object_wire.Broken as error:
                if number == ATTEMPTS or not error.passing:
                    raise StoreError("%s: %s cannot be used: %s" % (url, self._host, error), code="Broken") from error
            pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** (number - 1))
            time.sleep(pause_s * random.random())  # noqa: S311 - so that not all nodes come back at the same moment


class _Memory(object):
    """A sink in memory, of SMALL_BYTES at most."""

    def __init__(self, url):
        self.parts = []
        self._url = url
        self._size = 0

    def seek(self, _position):
        self.parts, self._size = [], 0

    def truncate(self):
        pass  # seek has done it

    def write(self, chunk):
        self._size += len(chunk)
        if self._size > SMALL_BYTES:
            raise StoreError(
                "%s is larger than %d bytes: get_file reads it" % (self._url, SMALL_BYTES), code="TooLarge"
            )
        self.parts.append(chunk)


def split_url(url):
    """The bucket and key of s3://BUCKET/KEY; the key may be empty. Raises ValueError for another kind of URL."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise ValueError("%s: not an S3 URL, which is s3://BUCKET/KEY" % url)
    return bucket, key


def split_object_url(url):
    """The bucket and key of an object. Raises ValueError where one of them is missing."""
    bucket, key = split_url(url)
    if not key:
        raise ValueError("%s: the name of an object is missing" % url)
    return bucket, key


def _keys_of(env):
    access_key = _first(env, "AWS_ACCESS_KEY_ID", "S3_ACCESS_KEY_ID")
    secret_key = _first(env, "AWS_SECRET_ACCESS_KEY", "S3_SECRET_ACCESS_KEY")
    if not access_key or not secret_key:
        raise StoreError("there are no AWS credentials here: AWS_ACCESS_KEY_ID is not set", code="NoCredentials")
    return aws_signature.Keys(access_key, secret_key, _first(env, "AWS_SESSION_TOKEN", "S3_SESSION_TOKEN"))


def _first(env, *names):
    return next((env[name] for name in names if env.get(name)), None)


def _digest(stream, size):
    """The SHA-256 of the first `size` bytes of a file."""
    digest = hashlib.sha256()
    for chunk in object_wire.pieces(stream, size):
        digest.update(chunk)
    return digest


def _parse_page(text, url, bucket):
    """The entries of one page of a listing, and what the next one is asked for by, None after the last."""
    try:
        page = ET.fromstring(text)  # noqa: S314 - it is S3's own
    except ET.ParseError as error:
        raise StoreError("%s: what answers is not S3: %s" % (url, error), code="Malformed") from error
    space = page.tag.partition("}")[0] + "}" if page.tag.startswith("{") else ""
    entries = []
    for item in page.iter(space + "Contents"):
        key = urllib.parse.unquote_plus(item.findtext(space + "Key"))
        modified = item.findtext(space + "LastModified")
        entry = Entry(
            url="s3://%s/%s" % (bucket, key),
            size_bytes=int(item.findtext(space + "Size")),
            modified=calendar.timegm(time.strptime(modified[:19], "%Y-%m-%dT%H:%M:%S")),
            etag=item.findtext(space + "ETag", ""),
        )
        entries.append(entry)
    more = page.findtext(space + "IsTruncated") == "true"
    return entries, page.findtext(space + "NextContinuationToken") if more else None
