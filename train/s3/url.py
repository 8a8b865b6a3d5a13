"""Names in S3: s3://bucket/key, globs over keys, which keys may be created, and which may become local paths."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import Struct

from foundation.errors import UsageError

SCHEME = "s3://"
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
BUCKET_NAMES = '"{bucket}" is not a bucket name: 3 to 63 lower-case letters, digits, dots and hyphens'
MAX_KEY_BYTES = 1024
_HOW = "write it as s3://BUCKET/FOLDER/"
_GLOB = re.compile(r"[*?]")
_CONTROL = re.compile("[\0-\x1f\x7f\ufffe\uffff]")


class S3Url(Struct, frozen=True, kw_only=True, order=True):
    """A bucket (empty key), an object, or, if the key ends with a slash, a folder: all keys that begin with it."""

    bucket: str
    key: str = ""

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"

    def as_folder(self) -> "S3Url":
        """The URL as a folder's, with a trailing slash. Pure."""
        return self if not self.key or self.key.endswith("/") else S3Url(bucket=self.bucket, key=self.key + "/")


class S3Object(Struct, frozen=True, kw_only=True):
    """An object as a listing shows it; `etag` changes with its content."""

    url: S3Url
    size_bytes: int
    modified: datetime
    etag: str


def check_folder(text: str) -> str:
    """Returns the S3 URL of a setting unchanged; pure. Raises ValueError with the reason if it is not valid."""
    if not text.startswith(SCHEME):
        raise ValueError("not an S3 URL: write it as s3://BUCKET/FOLDER/")
    bucket, _, key = text.removeprefix(SCHEME).partition("/")
    problem = BUCKET_NAMES.format(bucket=bucket) if not _is_bucket(bucket) else key and explain_key(key)
    if problem:
        raise ValueError(problem)
    return text


_PATH = re.compile(r"(/[A-Za-z0-9_.][A-Za-z0-9_.+-]*)+/?")


def check_place(text: str) -> str:
    """As check_folder; also accepts an absolute path. Pure. Raises ValueError."""
    if not text.startswith("/"):
        return check_folder(text)
    if not _PATH.fullmatch(text) or not {".", ".."}.isdisjoint(text.split("/")):
        raise ValueError('not a path of letters, digits and . _ + -, without "..", such as "/shared/data"')
    return text


def is_s3(text: str) -> bool:
    """Whether this is an S3 URL. Raises UsageError for a misspelt one, which would count as a path."""
    is_url = text.startswith(SCHEME)
    if not is_url and text[:3].lower() == SCHEME[:3]:
        raise UsageError(f"{text}: not an S3 URL", hint=_HOW)
    return is_url


def _is_bucket(name: str) -> bool:
    return _BUCKET.fullmatch(name) is not None and ".." not in name


def parse_url(text: str, *, exact: bool = False) -> S3Url:
    """The bucket and key of an s3:// URL.

    exact: accept any key that an object may have. Raises UsageError if it is not a URL, the bucket's name is not
    allowed, or no object may have the key; without `exact` also for the keys that explain_key explains.
    """
    if not is_s3(text):
        raise UsageError(f"{text}: not an S3 URL", hint=_HOW)
    bucket, _, key = text.removeprefix(SCHEME).partition("/")
    if not _is_bucket(bucket):
        raise UsageError(f"{text}: {BUCKET_NAMES.format(bucket=bucket)}", hint=_HOW)
    problem = key and (_explain_bytes(key) if exact else explain_key(key))
    if problem:
        raise UsageError(f"{text}: {problem}")
    return S3Url(bucket=bucket, key=key)


def explain_key(key: str) -> str:
    """Why this program creates no object of this name; empty if it may. Pure.

    S3 treats empty parts, "." and ".." as plain names, and other tools as paths. Most control characters break the
    answers of S3 that contain them.
    """
    if not {"", ".", ".."}.isdisjoint(key.removesuffix("/").split("/")):
        return 'a part of the key is empty, "." or ".."'
    if _CONTROL.search(key):
        return "the name has a control character"
    return _explain_bytes(key)


def _explain_bytes(key: str) -> str:
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        return "the name is not UTF-8, which S3 needs"
    return f"the key has {length} bytes, S3 allows {MAX_KEY_BYTES}" if length > MAX_KEY_BYTES else ""


def is_marker(key: str, size_bytes: int) -> bool:
    """Whether an object is only a folder marker, as S3's console creates them: `name/`, without content."""
    return key.endswith("/") and not size_bytes


def has_glob(text: str) -> bool:
    """Whether the text contains * or ?."""
    return _GLOB.search(text) is not None


def literal_prefix(pattern: str) -> str:
    """The folder part before the first glob character: every key that can match begins with it."""
    head = _GLOB.split(pattern, maxsplit=1)[0]
    return head[: head.rfind("/") + 1]


_WILDCARDS = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def compile_glob(pattern: str) -> re.Pattern[str]:
    """A pattern for whole keys: * and ? stay in a folder, ** crosses folders. Pure."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    return re.compile("".join(_WILDCARDS.get(part) or re.escape(part) for part in parts), re.DOTALL)


def compile_excludes(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Returns a function that tells whether a name below the destination, or a folder that contains it, is excluded.

    A pattern with a slash matches whole names. A pattern without a slash matches the last part, at any depth.
    """
    compiled = [
        compile_glob(pattern.strip("/") if "/" in pattern.strip("/") else f"**/{pattern.strip('/')}")
        for pattern in patterns
    ]

    def is_excluded(name: str) -> bool:
        ends = [at for at, char in enumerate(name) if char == "/"]
        return any(pattern.fullmatch(name, 0, end) for pattern in compiled for end in [*ends, len(name)])

    return is_excluded


def explain_path(relative: str) -> str:
    """Why a relative name from S3 cannot be a file inside the folder that it is written to; empty if it can. Pure."""
    if relative.endswith("/") or not relative:
        return "a file's name cannot end with a slash"
    if not {"", ".", ".."}.isdisjoint(relative.split("/")):
        return 'a part of the name is empty, "." or "..": get it alone, with a file name as DST'
    return "the name has a NUL character" if "\0" in relative else ""
