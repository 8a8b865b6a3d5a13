"""What S3 says about one object, asked without botocore: to load that takes as long as half a GiB on a fast network.

obstore is asked in vain: it does not tell the checksums that S3 keeps.
"""

import os
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from train.node import aws_signature
from train.s3.access import S3Endpoint
from train.s3.url import S3Url

_TIMEOUT_S = 20
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy"})


def ask_headers(endpoint: S3Endpoint, url: S3Url, *, region: str, etag: str) -> Mapping[str, str] | None:
    """Of the object of this ETag, checksums included, names in lower case. None where botocore has to ask.

    That is for whatever is not plain: a proxy, another address than the endpoint's, and all that is not answered by a
    yes. botocore repeats what helps to be repeated, and knows the words for the rest.
    """
    parts = urlsplit(endpoint.url or "")
    if not parts.netloc or parts.path.strip("/") or not _PROXIES.isdisjoint(name.lower() for name in os.environ):
        return None
    import ssl  # noqa: PLC0415 - slow to import
    from http.client import HTTPConnection, HTTPException, HTTPSConnection  # noqa: PLC0415 - the same

    request = aws_signature.Request(
        method="HEAD",
        host=parts.netloc,
        path=aws_signature.encode(f"/{url.bucket}/{url.key}", safe="/"),
        query="",
        headers={"x-amz-checksum-mode": "ENABLED", "If-Match": etag},
        payload_sha256=aws_signature.EMPTY_SHA256,
    )
    told = endpoint.credentials()
    keys = aws_signature.Keys(told["access_key_id"], told["secret_access_key"], told.get("token"))
    connection: HTTPConnection
    try:
        if parts.scheme == "https":
            context = ssl.create_default_context()
            if endpoint.authorities:
                context.load_verify_locations(cadata=endpoint.authorities)
            connection = HTTPSConnection(parts.netloc, timeout=_TIMEOUT_S, context=context)
        else:
            connection = HTTPConnection(parts.netloc, timeout=_TIMEOUT_S)
        try:
            connection.request("HEAD", request.path, headers=aws_signature.sign(request, keys, region, time.time()))
            answer = connection.getresponse()
        finally:
            connection.close()
    except (OSError, ValueError, HTTPException):  # ssl's own errors are OSErrors
        return None
    return {name.lower(): value for name, value in answer.getheaders()} if answer.status == 200 else None
