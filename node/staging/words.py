"""The words of a command that name data in S3, and the same words with paths on this node. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from node.staging.s3 import Entry

# An s3:// URL within a word, up to a character that a shell, a list or a pattern of MXNet's readers gives a meaning.
URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/(?:(?!,s3://)[^\s;'\"`|<>()\[?#*$\\\x00-\x1f\x7f])*)?")
RECORDS, INDEX = ".rec", ".idx"
INDEXES = "index/"  # of `cluster data pack`
_DIGITS = re.compile(r"\d+")


def find_urls(words: Iterable[str]) -> list[str]:
    """Returns the URLs in words such as --key=s3://b/a;s3://b/b and in lines for a shell, each one once, in order."""
    return list(dict.fromkeys(url for word in words for url in URL.findall(word)))


def is_below(url: str, folder: str) -> bool:
    """Whether a URL is a folder's, or that of something in it."""
    return f"{url}/".startswith(folder.rstrip("/") + "/")


def replace_urls(words: Iterable[str], paths: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the words with paths instead of the URLs that have one."""
    return tuple(URL.sub(lambda found: paths.get(found[0], found[0]), word) for word in words)


def make_path(folder: str, url: str) -> str:
    """Returns the path of an object, or of a beginning of a key, below the folder with a node's data."""
    return f"{folder}/{url.removeprefix('s3://')}"


def find_url(name: str, urls: Iterable[str]) -> str | None:
    """Returns the URL of a file below the folder with a node's data, if its key begins with one of these URLs."""
    url = f"s3://{name}"
    return url if url.startswith(tuple(urls)) else None


def make_value(folder: str, url: str, entries: "Sequence[Entry]") -> str:
    """Returns what replaces a URL in a word. entries: the objects at this URL, sorted.

    A path, or for a folder with nothing but the shards of records (and the folder of their indexes) the list of their
    paths, separated by `;`: MXNet reads a local folder in the order of its file system, which differs between nodes,
    and so would its parts.
    """
    begin = len(url.rstrip("/")) + 1
    shards = [entry.url for entry in entries if entry.size_bytes and not entry.url.startswith(INDEXES, begin)]
    names = [shard[begin:] for shard in shards]
    are_shards = len(names) > 1 and all(name.endswith(RECORDS) and "/" not in name for name in names)
    if are_shards and all(is_below(shard, url) for shard in shards) and len(set(map(_stem, names))) == 1:
        return ";".join(make_path(folder, shard) for shard in shards)
    return make_path(folder, url)


def _stem(name: str) -> str:
    return _DIGITS.sub("", name)
