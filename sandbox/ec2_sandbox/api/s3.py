"""S3's multipart uploads in progress: ListMultipartUploads with times and encoded keys, which moto lacks.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListMultipartUploads.html
"""

import datetime as dt
import re
from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote_plus

from moto.core.common_types import TYPE_RESPONSE
from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.s3 import responses
from moto.s3.models import FakeMultipart
from moto.s3.responses import S3Response

_UPLOAD_ID = re.compile(rb"<UploadId>([^<]+)</UploadId>")


class SandboxS3Response(S3Response):
    """moto's S3 actions, with the times of uploads. starts: when each was initiated, by its id."""

    starts: ClassVar[dict[str, dt.datetime]] = {}

    def _key_response_post(
        self, request: Any, body: bytes, bucket_name: str, query: dict[str, Any], key_name: str
    ) -> TYPE_RESPONSE:
        """As in moto, and records when an upload was initiated."""
        answer: TYPE_RESPONSE = super()._key_response_post(request, body, bucket_name, query, key_name)
        if "uploads" in query and answer[0] < 300:
            content = answer[2].encode() if isinstance(answer[2], str) else answer[2]
            if begun := _UPLOAD_ID.search(content):
                self.starts[begun[1].decode()] = utcnow()
        return answer

    def list_multipart_uploads(self) -> TYPE_RESPONSE:
        """Returns the uploads with the prefix, on one page."""
        parameters = {name: values[0] for name, values in self.querystring.items() if values}
        found: list[FakeMultipart] = list(self.backend.list_multipart_uploads(self.bucket_name).values())
        encode = partial(quote_plus, safe="/") if parameters.get("encoding-type") == "url" else str
        prefix = parameters.get("prefix", "")
        self.data["Action"] = "ListMultipartUploads"
        return self.serialized(
            ActionResult(
                {
                    "Bucket": self.bucket_name,
                    "EncodingType": parameters.get("encoding-type"),
                    "Prefix": encode(prefix),
                    "IsTruncated": False,
                    "Uploads": [
                        _describe(upload, encode(upload.key_name), self.starts[upload.id])
                        for upload in found
                        if upload.key_name.startswith(prefix)
                    ],
                }
            )
        )


def install_uploads() -> None:
    """Replaces moto's class. Call it before the first request, because moto then looks the class up by name."""
    responses.S3Response = SandboxS3Response  # type: ignore[misc]


def _describe(upload: FakeMultipart, key: str, start: dt.datetime) -> dict[str, Any]:
    return {
        "Key": key,
        "UploadId": upload.id,
        "StorageClass": upload.storage or "STANDARD",
        "Initiated": start,
        "ChecksumAlgorithm": upload.metadata.get("x-amz-checksum-algorithm"),
        "ChecksumType": upload.metadata.get("x-amz-checksum-type"),
    }
