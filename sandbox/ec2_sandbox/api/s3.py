"""S3's multipart uploads in progress, with times and encoded keys, which moto lacks.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListMultipartUploads.html
"""

from functools import partial
from typing import Any, cast
from urllib.parse import quote_plus

from moto.core.common_types import TYPE_RESPONSE
from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.s3 import models, responses


class SandboxMultipart(models.FakeMultipart):
    """moto's upload, with the time at which it was initiated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initiated = utcnow()


class SandboxS3Response(responses.S3Response):
    """moto's S3 actions, with the times of uploads."""

    def list_multipart_uploads(self) -> TYPE_RESPONSE:
        """Returns the uploads with the prefix, on one page."""
        parameters = {name: values[0] for name, values in self.querystring.items() if values}
        encoding, prefix = parameters.get("encoding-type"), parameters.get("prefix", "")
        encode = partial(quote_plus, safe="/") if encoding == "url" else str
        found = cast("list[SandboxMultipart]", list(self.backend.list_multipart_uploads(self.bucket_name).values()))
        uploads = [
            {
                "Key": encode(upload.key_name), "UploadId": upload.id, "Initiated": upload.initiated,
                "StorageClass": upload.storage or "STANDARD",
                "ChecksumAlgorithm": upload.metadata.get("x-amz-checksum-algorithm"),
                "ChecksumType": upload.metadata.get("x-amz-checksum-type"),
            }
            for upload in found if upload.key_name.startswith(prefix)
        ]  # fmt: skip
        self.data["Action"] = "ListMultipartUploads"
        result = {"Bucket": self.bucket_name, "EncodingType": encoding, "Prefix": encode(prefix), "IsTruncated": False}
        return self.serialized(ActionResult({**result, "Uploads": uploads}))


# moto looks its classes up by name at the first request.
models.FakeMultipart = SandboxMultipart  # type: ignore[misc]
responses.S3Response = SandboxS3Response  # type: ignore[misc]
