"""Lists multipart uploads in progress, whatever their keys are."""

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote_plus

NOT_IN_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that XML 1.0 cannot represent (https://www.w3.org/TR/xml/#charsets): S3 accepts them in keys, but its
answers with such a key cannot be parsed, except those of lists with EncodingType="url"."""


def list_uploads(list_page: Callable[..., Any], *, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Yields the uploads in progress, as ListMultipartUploads describes them, in the order of their keys.

    list_page: calls ListMultipartUploads. botocore asks for encoded keys, and decodes them, only in lists of objects.
    """
    request = {"Bucket": bucket, "Prefix": prefix, "EncodingType": "url"}
    while True:
        page = list_page(**request)
        decode = unquote_plus if page.get("EncodingType") == "url" else str
        for upload in page.get("Uploads", ()):
            yield {**upload, "Key": decode(upload["Key"])}
        if not page.get("IsTruncated"):
            return
        request |= {"KeyMarker": decode(page["NextKeyMarker"]), "UploadIdMarker": page["NextUploadIdMarker"]}
