"""Buckets in another region than cluster.toml's: S3's answers lead to their region."""

import os
from pathlib import Path

import pytest

from folders import read_files, write_files
from foundation.progress import silent
from http_server import Asked, Refusal, judging_proxy
from s3_server import REGION, S3Server
from train.s3 import operations as s3
from train.s3.connection import S3Endpoint
from train.s3.transfer import PART_BYTES, SMALL_BYTES

BUCKET = "datasets"
ELSEWHERE = "us-east-1"
SIZES = {**{f"small{number}": 1000 + number for number in range(8)}, "middle": SMALL_BYTES + 1, "large": PART_BYTES + 1}


def redirect(asked: Asked) -> Refusal | None:
    """Answers like a region's own address to a request for a bucket in another region.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingRouting.html
    """
    if asked.region == REGION or asked.path == "/":  # the list of all buckets is the same everywhere
        return None
    return Refusal(
        status=301,
        code="PermanentRedirect",
        message="The bucket must be addressed using the specified endpoint.",
        more=f"<Endpoint>{BUCKET}.s3.{REGION}.amazonaws.com</Endpoint><Bucket>{BUCKET}</Bucket>",
        headers={"x-amz-bucket-region": REGION},
    )


def test_a_bucket_in_another_region_is_found_there(server: S3Server, tmp_path: Path) -> None:
    files = {name: os.urandom(size) for name, size in SIZES.items()}
    write_files(tmp_path / "local", files)
    server.put(BUCKET, {})
    # AWS adds the bucket's region to each listing, unlike moto.
    with judging_proxy(server.url, redirect, of_listings={"x-amz-bucket-region": REGION}) as proxy:
        here, there, back = f"{tmp_path / 'local'}/", f"s3://{BUCKET}/d/", str(tmp_path / "back")
        s3.put([here], there, region=ELSEWHERE, report=silent)
        again = s3.put([here], there, region=ELSEWHERE, report=silent)
        assert not again.plan.transfers
        s3.put([f"{here}large"], there, region=ELSEWHERE, report=silent)
        assert len(s3.ls(there, region=ELSEWHERE)) == len(files)
        s3.get([there], back, region=ELSEWHERE)
        assert read_files(Path(back)) == files
        assert s3.rm([there], region=ELSEWHERE, recursive=True) == len(files)
    # Each of the six commands is refused only a few times, whatever its number of files. No file is sent in vain.
    assert 6 <= len(proxy.refused()) <= 6 * 3
    assert not [asked for asked in proxy.refused() if asked.size_bytes > PART_BYTES or asked.method == "PUT"]


@pytest.mark.parametrize(
    ("url", "moved"),
    [
        ("https://s3.us-east-1.amazonaws.com", "https://s3.eu-west-1.amazonaws.com"),
        ("https://s3.dualstack.us-east-1.amazonaws.com/", "https://s3.dualstack.eu-west-1.amazonaws.com/"),
        ("https://s3.cn-north-1.amazonaws.com.cn", "https://s3.eu-west-1.amazonaws.com.cn"),
        ("https://s3.amazonaws.com", "https://s3.eu-west-1.amazonaws.com"),  # botocore's for us-east-1
        ("https://s3.us-east-1.example.com", "https://s3.us-east-1.example.com"),
    ],
)
def test_endpoint_in_another_region(url: str | None, moved: str | None) -> None:
    endpoint = S3Endpoint(
        url=url,
        authorities=None,
        credentials=lambda: {"access_key_id": "", "secret_access_key": "", "expires_at": None},
    )
    assert endpoint.in_region("eu-west-1").url == moved
