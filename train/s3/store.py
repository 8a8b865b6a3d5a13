"""Wheels in S3, for [bootstrap] distribute = "s3": put there once, named by their content, taken by presigned URLs."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from bootstrap.shelf import BundleFile
from provision.errors import ConfigError, NotFoundError
from provision.progress import Event, Report
from train.s3.client import explain
from train.s3.earlier import find_earlier
from train.s3.journal import find_journal
from train.s3.plan import Upload
from train.s3.transfer import PART_BYTES, Unwatched, apply, open_wire, part_size
from train.s3.url import S3Url, parse_url

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

NOT_FOUND = 404
URL_HOURS = 6
"""For how long a presigned URL is good; with temporary credentials, no longer than they are."""


class S3Store:
    """A folder in S3; in it, a file lies at SHA256/NAME."""

    def __init__(self, url: str, *, region: str, report: Report) -> None:
        self._folder = parse_url(url).as_folder()
        self._region = region
        self._report = report

    @property
    def authorities(self) -> str | None:
        """The certificates that AWS_CA_BUNDLE names, PEM: nodes do not know a private authority by themselves.

        Raises ConfigError when they cannot be read.
        """
        path = os.environ.get("AWS_CA_BUNDLE")
        if not path:
            return None
        try:
            return Path(path).read_text(encoding="ascii", errors="ignore")
        except OSError as error:
            raise ConfigError(f'AWS_CA_BUNDLE = "{path}": cannot be read: {error.strerror}') from error

    def render_place(self, file: BundleFile) -> str:
        """Where a file lies, as an s3:// URL. Pure."""
        return str(self._find_url(file))

    def share(self, files: Sequence[BundleFile], find_path: Callable[[BundleFile], Path]) -> Mapping[str, str]:
        """Put there what is not there yet; a presigned URL for each file, by its SHA-256.

        What is there with the right size counts; its content is compared where the file lies on this machine and S3
        gives an MD5. find_path: brings a file to this machine. Raises NotFoundError for the bucket, AwsError,
        ClusterError that names each file that failed.
        """
        session = boto3.Session()
        region = self._find_region(session)
        s3: S3Client = session.client("s3", region_name=region, config=Config(signature_version="s3v4"))
        self._put([file for file in files if not self._is_there(s3, file)], find_path, region=region)
        return {file.sha256: self._presign(s3, file) for file in files}

    def _find_region(self, session: boto3.Session) -> str:
        """The bucket's region: presigned URLs are good for no other."""
        bucket = self._folder.bucket
        try:
            found = session.client("s3", region_name=self._region).head_bucket(Bucket=bucket)
        except ClientError as error:
            if _status(error) == NOT_FOUND:
                raise NotFoundError(
                    f'[bootstrap] store = "{self._folder}": bucket {bucket} does not exist',
                    hint=f"cluster data put --create-bucket cluster.toml s3://{bucket}/ makes it",
                ) from error
            raise explain(error, "list_objects_v2", bucket=bucket, key=None) from error
        except BotoCoreError as error:
            raise explain(error, "connect", bucket=bucket, key=None) from error
        return found.get("BucketRegion") or self._region

    def _is_there(self, s3: "S3Client", file: BundleFile) -> bool:
        url = self._find_url(file)
        try:
            found: Mapping[str, Any] = s3.head_object(Bucket=url.bucket, Key=url.key)
        except ClientError as error:
            if _status(error) == NOT_FOUND:
                return False
            raise explain(error, "get_object", bucket=url.bucket, key=url.key) from error
        except BotoCoreError as error:
            raise explain(error, "get_object", bucket=url.bucket, key=url.key) from error
        if found["ContentLength"] != file.size_bytes:
            return False
        # https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html: with a KMS key an ETag is no MD5.
        if not file.path.exists() or found.get("ServerSideEncryption", "AES256") != "AES256":
            return True
        return bool(found["ETag"].strip('"') == find_etag(file.path))

    def _put(self, files: Sequence[BundleFile], find_path: Callable[[BundleFile], Path], *, region: str) -> None:
        uploads = [
            Upload(source=find_path(file), destination=self._find_url(file), size_bytes=file.size_bytes)
            for file in files
        ]
        wire, journal = open_wire(region=region), find_journal()
        # Also where nothing is missing: a run that was killed may have begun what is not wanted any more.
        earlier = find_earlier(wire, journal, self._folder, uploads, self._report)
        if not uploads:
            return
        size_mb = sum(file.size_bytes for file in files) / 1e6
        what = f"putting {len(files)} files, {size_mb:.0f} MB"
        self._report(Event(kind="start", what=what, where=str(self._folder)))
        apply(wire, uploads, Unwatched(), earlier=earlier, journal=journal)
        self._report(Event(kind="done", what=what, where=str(self._folder)))

    def _presign(self, s3: "S3Client", file: BundleFile) -> str:
        url = self._find_url(file)
        try:
            return s3.generate_presigned_url(
                "get_object", Params={"Bucket": url.bucket, "Key": url.key}, ExpiresIn=URL_HOURS * 3600
            )
        except BotoCoreError as error:
            raise explain(error, "get_object", bucket=url.bucket, key=url.key) from error

    def _find_url(self, file: BundleFile) -> S3Url:
        return S3Url(bucket=self._folder.bucket, key=f"{self._folder.key}{file.sha256}/{file.name}")


def find_etag(path: Path) -> str:
    """The ETag that S3 gives a file which transfer.py puts there: its MD5, or that of its parts' MD5s.

    Raises OSError.
    """
    size_bytes = path.stat().st_size
    step = part_size(size_bytes)
    with path.open("rb") as stream:
        parts = [hashlib.md5(stream.read(step), usedforsecurity=False) for _ in range(0, max(size_bytes, 1), step)]
    if size_bytes <= PART_BYTES:
        return parts[0].hexdigest()
    whole = hashlib.md5(b"".join(part.digest() for part in parts), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(parts)}"


def _status(error: ClientError) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
