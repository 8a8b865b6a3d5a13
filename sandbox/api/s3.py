"""S3's uploads in progress: ListMultipartUploads in pages, with initiator and time, which moto lacks.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListMultipartUploads.html
"""

import datetime as dt
import re
from dataclasses import dataclass
from typing import Any, ClassVar

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
    """How an upload began. initiator: an ARN."""

    at: dt.datetime
    initiator: str


class SandboxS3Response(S3Response):
    """moto's S3 actions, with more about uploads. starts: by the upload's id."""

    starts: ClassVar[dict[str, UploadStart]] = {}

    def _key_response_post(
        self, request: Any, body: bytes, bucket_name: str, query: dict[str, Any], key_name: str
    ) -> TYPE_RESPONSE:
        """As moto's, and records who began an upload, and when."""
        answer: TYPE_RESPONSE = super()._key_response_post(request, body, bucket_name, query, key_name)
        if "uploads" in query and answer[0] < 300:
            content = answer[2].encode() if isinstance(answer[2], str) else answer[2]
            if begun := _UPLOAD_ID.search(content):
                self.starts[begun[1].decode()] = UploadStart(at=utcnow(), initiator=self._read_caller())
        return answer

    def list_multipart_uploads(self) -> TYPE_RESPONSE:
        """A page of the uploads with the prefix, in the order of their keys, after the markers."""
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
        truncated = len(uploads) > len(page)
        self.data["Action"] = "ListMultipartUploads"
        return self.serialized(
            ActionResult(
                {
                    "Bucket": self.bucket_name,
                    "Prefix": asked.get("prefix", ""),
                    "KeyMarker": asked.get("key-marker", ""),
                    "UploadIdMarker": asked.get("upload-id-marker", ""),
                    "NextKeyMarker": page[-1].key_name if truncated else None,
                    "NextUploadIdMarker": page[-1].id if truncated else None,
                    "MaxUploads": most,
                    "IsTruncated": truncated,
                    "Uploads": [_describe(upload, self.starts[upload.id]) for upload in page],
                }
            )
        )

    def _read_caller(self) -> str:
        """The caller's ARN, as GetCallerIdentity gives it."""
        _, arn, _ = sts_backends[self.current_account]["global"].get_caller_identity(self.get_access_key(), self.region)
        return str(arn)


def install_uploads() -> None:
    """Replaces moto's class; before the first request, when moto looks it up by its name."""
    responses.S3Response = SandboxS3Response  # type: ignore[misc]


def _describe(upload: FakeMultipart, start: UploadStart) -> dict[str, Any]:
    name = start.initiator.rpartition("/")[2]
    return {
        "Key": upload.key_name,
        "UploadId": upload.id,
        "Initiator": {"ID": start.initiator, "DisplayName": name},
        "Owner": {"ID": upload.account_id, "DisplayName": name},
        "StorageClass": upload.storage or "STANDARD",
        "Initiated": start.at,
        "ChecksumAlgorithm": upload.metadata.get("x-amz-checksum-algorithm"),
        "ChecksumType": upload.metadata.get("x-amz-checksum-type"),
    }
