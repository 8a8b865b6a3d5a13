"""S3's multipart uploads in progress: ListMultipartUploads with pages, initiators and times, which moto lacks.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListMultipartUploads.html
"""

import datetime as dt
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote_plus

from moto.core.common_types import TYPE_RESPONSE
from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.s3 import responses
from moto.s3.models import FakeMultipart
from moto.s3.responses import S3Response
from moto.sts.models import sts_backends

PAGE = 1000
_UPLOAD_ID = re.compile(rb"<UploadId>([^<]+)</UploadId>")


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadStart:
    """When an upload was initiated, and by whom. initiator: an ARN."""

    at: dt.datetime
    initiator: str


class SandboxS3Response(S3Response):
    """moto's S3 actions, with more data about uploads. starts: by upload id."""

    starts: ClassVar[dict[str, UploadStart]] = {}

    def _key_response_post(
        self, request: Any, body: bytes, bucket_name: str, query: dict[str, Any], key_name: str
    ) -> TYPE_RESPONSE:
        """As in moto, and records who initiated an upload, and when."""
        answer: TYPE_RESPONSE = super()._key_response_post(request, body, bucket_name, query, key_name)
        if "uploads" in query and answer[0] < 300:
            content = answer[2].encode() if isinstance(answer[2], str) else answer[2]
            if begun := _UPLOAD_ID.search(content):
                self.starts[begun[1].decode()] = UploadStart(at=utcnow(), initiator=self._read_caller())
        return answer

    def list_multipart_uploads(self) -> TYPE_RESPONSE:
        """Returns a page of the uploads with the prefix that follow the markers, in the order of their keys."""
        asked = {name: values[0] for name, values in self.querystring.items() if values}
        most = min(int(asked.get("max-uploads", PAGE)), PAGE)
        marker = (asked.get("key-marker", ""), asked.get("upload-id-marker", "\U0010ffff"))
        uploads: list[FakeMultipart] = sorted(
            (
                upload
                for upload in self.backend.list_multipart_uploads(self.bucket_name).values()
                if upload.key_name.startswith(asked.get("prefix", "")) and (upload.key_name, upload.id) > marker
            ),
            key=lambda upload: (upload.key_name, upload.id),
        )
        page = uploads[:most]
        encode = partial(quote_plus, safe="/") if asked.get("encoding-type") == "url" else str
        truncated = len(uploads) > len(page)
        self.data["Action"] = "ListMultipartUploads"
        return self.serialized(
            ActionResult(
                {
                    "Bucket": self.bucket_name,
                    "EncodingType": asked.get("encoding-type"),
                    "Prefix": encode(asked.get("prefix", "")),
                    "KeyMarker": encode(asked.get("key-marker", "")),
                    "UploadIdMarker": asked.get("upload-id-marker", ""),
                    "NextKeyMarker": encode(page[-1].key_name) if truncated else None,
                    "NextUploadIdMarker": page[-1].id if truncated else None,
                    "MaxUploads": most,
                    "IsTruncated": truncated,
                    "Uploads": [_describe(upload, encode(upload.key_name), self.starts[upload.id]) for upload in page],
                }
            )
        )

    def _read_caller(self) -> str:
        """Returns the caller's ARN, as GetCallerIdentity does."""
        _, arn, _ = sts_backends[self.current_account]["global"].get_caller_identity(self.get_access_key(), self.region)
        return str(arn)


def install_uploads() -> None:
    """Replaces moto's class. Call it before the first request, because moto then looks the class up by name."""
    responses.S3Response = SandboxS3Response  # type: ignore[misc]


def _describe(upload: FakeMultipart, key: str, start: UploadStart) -> dict[str, Any]:
    name = start.initiator.rpartition("/")[2]
    return {
        "Key": key,
        "UploadId": upload.id,
        "Initiator": {"ID": start.initiator, "DisplayName": name},
        "Owner": {"ID": upload.account_id, "DisplayName": name},
        "StorageClass": upload.storage or "STANDARD",
        "Initiated": start.at,
        "ChecksumAlgorithm": upload.metadata.get("x-amz-checksum-algorithm"),
        "ChecksumType": upload.metadata.get("x-amz-checksum-type"),
    }
