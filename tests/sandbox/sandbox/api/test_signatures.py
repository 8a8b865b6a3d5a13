"""The API answers only signed calls, and its log has no key."""

import http.client
import ssl
from urllib.parse import urlsplit

import boto3
import obstore
import pytest
from botocore.config import Config
from obstore.store import S3Store

from ec2_client import refused_as
from ec2_sandbox.paths import paths_of
from iam_steps import client_of
from sandbox_steps import REGION, RunningSandbox

pytestmark = pytest.mark.sandbox
NAMES = ("plain", "with space", "a+b", "ä/ö ü", "per%cent", "semi;colon", "a//b", "tilde~", "q?x=1&y", "(1)*'!")


@pytest.mark.parametrize(
    ("service", "operation", "arguments", "codes"),
    [
        ("ec2", "describe_instances", {}, "AuthFailure AuthFailure"),
        ("s3", "list_buckets", {}, "SignatureDoesNotMatch InvalidAccessKeyId"),
        ("sts", "get_caller_identity", {}, "SignatureDoesNotMatch InvalidClientTokenId"),
        ("ssm", "get_parameter", {"Name": "/x"}, "InvalidSignatureException UnrecognizedClientException"),
    ],
)
def test_a_call_needs_a_known_key_and_its_secret(
    phantom: RunningSandbox, service: str, operation: str, arguments: dict[str, object], codes: str
) -> None:
    """codes: the errors for a wrong secret and for an unknown key."""
    for key, code in zip((phantom.info.settings.access_key_id, "AKIAIOSFODNN7EXAMPLE"), codes.split(), strict=True):
        with refused_as(code) as caught:
            getattr(client_of(service, {"AccessKeyId": key, "SecretAccessKey": "x" * 40}), operation)(**arguments)
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 403)


@pytest.mark.parametrize("name", NAMES)
def test_object_names_as_clients_escape_them(phantom: RunningSandbox, name: str) -> None:
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="names")
    s3.put_object(Bucket="names", Key=name, Body=name.encode(), Metadata={"of": "mine"})
    assert s3.get_object(Bucket="names", Key=name)["Body"].read() == name.encode()
    if "//" not in name:  # obstore cannot name such a key
        info = phantom.info
        store = S3Store(
            "names", endpoint=info.endpoint_url, region=REGION, access_key_id=info.settings.access_key_id,
            secret_access_key=info.settings.secret_access_key,
            client_options={"root_certificate": info.paths.ca_file.read_bytes()},
        )  # fmt: skip
        obstore.put(store, name, b"by obstore")
        assert s3.get_object(Bucket="names", Key=name)["Body"].read() == b"by obstore"
        assert [entry["path"] for page in obstore.list(store) for entry in page] == [name]
    assert [one["Key"] for one in s3.list_objects_v2(Bucket="names", Prefix=name)["Contents"]] == [name]
    s3.delete_object(Bucket="names", Key=name)


def test_the_logs_have_no_key(phantom: RunningSandbox) -> None:
    boto3.client("sts").get_caller_identity()
    get(phantom, boto3.client("s3", config=Config(signature_version="s3v4")).generate_presigned_url("list_buckets"))
    paths = paths_of(phantom.project_dir)
    logged = paths.api_log.read_text()
    assert '"caller": "arn:aws:iam::123456789012:user/operator"' in logged
    for text in (logged, paths.daemon_log.read_text()):
        assert phantom.info.settings.access_key_id not in text
        assert "X-Amz-Credential" not in text


def get(sandbox: RunningSandbox, target: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """Sends a GET request; returns its status and answer."""
    url, endpoint = urlsplit(target), urlsplit(sandbox.info.endpoint_url)
    trusted = ssl.create_default_context(cafile=sandbox.info.paths.ca_file)
    connection = http.client.HTTPSConnection(endpoint.netloc, context=trusted, timeout=10)
    connection.request("GET", url.path + (f"?{url.query}" if url.query else ""), headers=headers or {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()
