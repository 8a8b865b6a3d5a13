"""Can a job read an object of S3 here, by MXNet itself or staged? Run by the environment's Python for `cluster verify`.

An order on stdin: {"uri": ..., "env": {...}, "secrets": {...}, "nodes_credentials": true for the instance's own}. One
JSON line: {"read": bytes of its first record}, {"error": MXNet's words} or {"credentials": why there are none}; where
MXNet was built without S3, {"staged": bytes that stage.py's way gives} or {"refused": why it gives none, "code": ...}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from train.node import instance_credentials, s3

NO_S3 = "DMLC_USE_S3"  # in what MXNet says where it was built without
SOME_BYTES = 65536


def main() -> None:
    """Open it and read one record."""
    print(json.dumps(read(json.loads(sys.stdin.readline()))), flush=True)


def read(order: dict[str, Any]) -> dict[str, Any]:
    """What the one line says."""
    try:
        secrets = instance_credentials.wait_for().variables if order["nodes_credentials"] else order["secrets"]
    except instance_credentials.CredentialsError as error:
        return {"credentials": str(error)}
    # Read by dmlc-core when it opens its first s3:// URI.
    os.environ.update({**order["env"], **secrets})
    import mxnet as mx  # noqa: PLC0415 - reads the environment

    try:
        record = mx.recordio.MXRecordIO(order["uri"], "r").read()
    except mx.base.MXNetError as error:
        return read_staged(order["uri"]) if NO_S3 in str(error) else {"error": str(error)}
    return {"read": len(record or b"")}


def read_staged(uri: str) -> dict[str, Any]:
    """The same, as stage.py reads: listed, and then its beginning."""
    store = s3.Store(os.environ)
    pieces: list[int] = []
    try:
        entry = store.find(uri)
        if entry is None:
            return {"refused": "it is gone", "code": "NoSuchKey"}
        store.read_range(entry, 0, min(entry.size_bytes, SOME_BYTES), lambda _, piece: pieces.append(len(piece)))
    except OSError as error:
        return {"refused": str(error), "code": getattr(error, "code", "")}
    return {"staged": sum(pieces)}
