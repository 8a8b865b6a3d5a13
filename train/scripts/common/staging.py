"""Local paths for objects in S3, downloaded through the node's cache, which all processes and jobs of the node share.

For programs that read files themselves. MXNet's readers get theirs from node/staging/hook.py. Imports no
framework.
"""

import atexit
import functools
import os
import sys
from typing import Any, List, NamedTuple, Sequence

from common import ScriptError

_CODE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
_SCHEME = "s3://"


def find_file(uri: str) -> str:
    """The local path of a file or an object. Raises ScriptError if an object cannot be read."""
    if not uri.startswith(_SCHEME):
        return uri
    entry = _ask(uri, lambda: _node().store.find(uri))
    if entry is None:
        raise ScriptError(f"{uri}: there is no such object: cluster data ls {uri.rpartition('/')[0]}/")
    return _stage(uri, [entry])[0]


def find_files(uri: str) -> List[str]:
    """The local paths of files, given as `a.rec`, `a.rec;b.rec`, or a folder, which ends with a slash.

    Raises ScriptError if there are none, or objects cannot be read.
    """
    found: List[str] = []
    for part in uri.split(";"):
        if part.endswith("/"):
            found += _find_folder(part)
        else:
            found.append(find_file(part))
    return found


def _find_folder(uri: str) -> List[str]:
    if not uri.startswith(_SCHEME):
        return [uri]  # the reader lists the folder
    entries = _ask(uri, lambda: [entry for entry in _node().store.list(uri, below=False) if entry.size_bytes])
    if not entries:
        raise ScriptError(f"{uri}: there is nothing to read: cluster data ls {uri}")
    return _stage(uri, entries)


class _Node(NamedTuple):
    store: Any
    cache: Any
    fetcher: Any
    fetch: Any  # the module


@functools.lru_cache(maxsize=1)
def _node() -> _Node:
    """This process's access to S3 and to the node's cache."""
    if _CODE not in sys.path:
        sys.path.append(_CODE)
    try:
        from node.staging import (  # noqa: PLC0415 - as s3
            cache,
            fetch,
            s3,
        )
    except ImportError as error:
        raise ScriptError(f"reading s3:// needs the packages msgspec and obstore in this Python: {error}") from error
    store = s3.Store(os.environ)
    folder = cache.find_folder(os.environ)
    kept = cache.Cache(folder, cache.find_limit(os.environ, folder, cache.find_held(folder)))
    atexit.register(kept.close)
    return _Node(store, kept, fetch.Fetcher(store, kept, lambda words: print(words, file=sys.stderr)), fetch)


def _stage(uri: str, entries: Sequence[Any]) -> List[str]:
    node = _node()

    def stage() -> List[str]:
        node.cache.use(entries)
        items = node.fetcher.want(entries, node.fetch.NOW)
        node.fetch.wait(node.fetcher, items, lambda: None)
        for item in items:
            if item.error:
                raise ScriptError(node.fetch.explain(item.error, node.cache.folder)) from item.error
        return [item.path for item in items]

    return _ask(uri, stage)


def _ask(uri: str, request: Any) -> Any:
    try:
        return request()
    except (OSError, ValueError) as error:
        raise ScriptError(f"{uri}: {error}") from error
