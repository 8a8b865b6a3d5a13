"""Which S3 operation a request is: S3's protocol says it by method, path and query alone.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations_Amazon_Simple_Storage_Service.html
"""

from collections.abc import Container

# Query parameters that make another resource of a bucket or an object, and what that is called in operations.
BUCKET_RESOURCES = {
    "acl": "BucketAcl", "cors": "BucketCors", "encryption": "BucketEncryption", "lifecycle": "BucketLifecycle",
    "location": "BucketLocation", "ownershipControls": "BucketOwnershipControls", "policy": "BucketPolicy",
    "publicAccessBlock": "PublicAccessBlock", "tagging": "BucketTagging", "versioning": "BucketVersioning",
}  # fmt: skip
OBJECT_RESOURCES = {"acl": "ObjectAcl", "attributes": "ObjectAttributes", "tagging": "ObjectTagging"}
VERBS = {"GET": "Get", "PUT": "Put", "DELETE": "Delete", "HEAD": "Head", "POST": "Post"}
LISTS = {"uploads": "ListMultipartUploads", "versions": "ListObjectVersions"}


def name_operation(method: str, path: str, query: Container[str], *, is_list_v2: bool, is_copy: bool) -> str:
    """S3's name of an operation. Pure.

    query: names of the query's parameters; is_list_v2: whether list-type is 2; is_copy: whether it names a source.
    """
    bucket, _, key = path.lstrip("/").partition("/")
    if not bucket:
        return "ListBuckets"
    if key:
        return _name_object_operation(method, query, is_copy=is_copy)
    if method == "POST" and "delete" in query:
        return "DeleteObjects"
    if method == "GET":
        for parameter, name in LISTS.items():
            if parameter in query:
                return name
    for parameter, name in BUCKET_RESOURCES.items():
        if parameter in query:
            return VERBS.get(method, method) + name
    plain = {"PUT": "CreateBucket", "DELETE": "DeleteBucket", "HEAD": "HeadBucket"}
    return plain.get(method, "ListObjectsV2" if is_list_v2 else "ListObjects")


def _name_object_operation(method: str, query: Container[str], *, is_copy: bool) -> str:
    if "uploadId" in query:
        parts = {"PUT": "UploadPartCopy" if is_copy else "UploadPart", "POST": "CompleteMultipartUpload",
                 "DELETE": "AbortMultipartUpload"}  # fmt: skip
        return parts.get(method, "ListParts")
    if "uploads" in query:
        return "CreateMultipartUpload"
    for parameter, name in OBJECT_RESOURCES.items():
        if parameter in query:
            return VERBS.get(method, method) + name
    if method == "PUT" and is_copy:
        return "CopyObject"
    return VERBS.get(method, method) + "Object"
