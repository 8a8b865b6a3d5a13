"""AWS's Signature Version 4 for S3: the headers that prove who sends a request. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html. S3 differs from AWS's other services: a
path is encoded once, and never tidied up, for `a//../b` is a key like any other.
Python 3.6 and later, standard library only.
"""

import functools
import hashlib
import hmac
import time
import urllib.parse
from typing import NamedTuple

ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


class Keys(object):
    """Who asks. token: None for a long-lived key."""

    def __init__(self, access_key, secret_key, token=None):
        self.access_key = access_key
        self.secret_key = secret_key
        self.token = token


class Request(NamedTuple):
    """What is asked. path and query: encoded, see below. payload_sha256: of the body, in hexadecimal digits."""

    method: str
    host: str
    path: str
    query: str
    headers: dict
    payload_sha256: str


def encode(text, safe=""):
    """Percent-encode as the signature wants it: every byte but A-Z a-z 0-9 - . _ ~ and those in `safe`."""
    return urllib.parse.quote(text, safe="~" + safe)


def encode_query(query):
    """A dict of parameters as the query of a URL, in the order in which they are signed."""
    pairs = sorted((encode(name), encode(value)) for name, value in query.items())
    return "&".join("%s=%s" % pair for pair in pairs)


def sign(request, keys, region, now):
    """All headers of a request as it is sent: its own, and Host, X-Amz-* and Authorization.

    now: seconds since the epoch.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    signed = dict(request.headers)
    signed["Host"] = request.host
    signed["X-Amz-Date"] = stamp
    signed["X-Amz-Content-SHA256"] = request.payload_sha256
    if keys.token:
        signed["X-Amz-Security-Token"] = keys.token
    lines = sorted((name.lower(), " ".join(value.split())) for name, value in signed.items())
    names = ";".join(name for name, _ in lines)
    canonical = [request.method, request.path, request.query]
    canonical += ["%s:%s" % line for line in lines] + ["", names, request.payload_sha256]
    scope = "/".join([stamp[:8], region, "s3", "aws4_request"])
    key = _derive_key(keys.secret_key, scope)
    digest = hashlib.sha256("\n".join(canonical).encode("utf-8")).hexdigest()
    to_sign = "%s\n%s\n%s\n%s" % (ALGORITHM, stamp, scope, digest)
    signature = hmac.new(key, to_sign.encode("utf-8"), hashlib.sha256).hexdigest()
    signed["Authorization"] = "%s Credential=%s/%s, SignedHeaders=%s, Signature=%s" % (
        ALGORITHM,
        keys.access_key,
        scope,
        names,
        signature,
    )
    return signed


@functools.lru_cache(maxsize=4)  # the same for a day, and a third of a signature's time
def _derive_key(secret_key, scope):
    key = ("AWS4" + secret_key).encode("utf-8")
    for part in scope.split("/"):
        key = hmac.new(key, part.encode("utf-8"), hashlib.sha256).digest()
    return key
