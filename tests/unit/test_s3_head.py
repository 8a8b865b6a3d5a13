"""What S3 says about an object, asked without botocore."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from s3_server import REGION, S3Server, serve_s3_alone
from train.s3.access import S3Endpoint, find_endpoint
from train.s3.head import ask_headers
from train.s3.transfer import open_wire
from train.s3.url import S3Url

KEY = "a folder/ü+%20 ~.rec"
URL = S3Url(bucket="heads", key=KEY)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve_s3_alone() as server:
        server.put(URL.bucket, {})
        server.client.put_object(Bucket=URL.bucket, Key=KEY, Body=b"content", ChecksumAlgorithm="CRC32")
        yield server


@pytest.fixture
def endpoint(server: S3Server) -> S3Endpoint:
    return replace(find_endpoint(region=REGION), url=server.url)


def find_etag(server: S3Server) -> str:
    return str(server.client.head_object(Bucket=URL.bucket, Key=KEY)["ETag"])


def test_it_is_told_what_botocore_is_told(server: S3Server, endpoint: S3Endpoint) -> None:
    told = ask_headers(endpoint, URL, region=REGION, etag=find_etag(server))
    other = open_wire(region=REGION).find_headers(URL)
    assert told is not None
    assert told["x-amz-checksum-crc32"]
    for name in ("content-length", "etag", "x-amz-checksum-crc32"):
        assert told[name] == other[name]


def test_what_is_not_plain_is_left_to_botocore(
    server: S3Server, endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    etag = find_etag(server)
    assert ask_headers(endpoint, URL, region=REGION, etag='"0"') is None
    assert ask_headers(endpoint, replace(URL, key="nothing"), region=REGION, etag=etag) is None
    for url in (None, f"{server.url}/below", "http://127.0.0.1:9", server.url.replace("http:", "https:")):
        assert ask_headers(replace(endpoint, url=url), URL, region=REGION, etag=etag) is None
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert ask_headers(endpoint, URL, region=REGION, etag=etag) is None
