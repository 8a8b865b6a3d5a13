"""Checks for `cluster verify`, in the environment's Python, whether a job on this node can read an object of S3.

Reads an order from stdin: {"uri": ..., "env": {...}, "secrets": {...}, "nodes_credentials": true for the instance's
own}. Prints one JSON line: {"read": bytes of the first record}, {"error": MXNet's message} or {"credentials": why there
are none}. Without MXNet, or if it was built without S3, it prints {"staged": bytes read} or
{"refused": why not, "code": ...}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from node import instance_credentials
from node.staging import s3

NO_S3 = "DMLC_USE_S3"  # appears in the error message of an MXNet that was built without S3
SOME_BYTES = 65536


def main() -> None:
    """Reads an order, and prints the answer."""
    print(json.dumps(read(json.loads(sys.stdin.readline()))), flush=True)


def read(order: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to an order."""
    try:
        secrets = instance_credentials.wait_for().variables if order["nodes_credentials"] else order["secrets"]
    except instance_credentials.CredentialsError as error:
        return {"credentials": str(error)}
    # dmlc-core reads the environment when it opens its first s3:// URI.
    os.environ.update({**order["env"], **secrets})
    try:
        import mxnet as mx  # noqa: PLC0415 - reads the environment
    except ModuleNotFoundError as error:  # the cluster has another framework
        if error.name != "mxnet":
            raise
        return read_staged(order["uri"])
    try:
        record = mx.recordio.MXRecordIO(order["uri"], "r").read()
    except mx.base.MXNetError as error:
        return read_staged(order["uri"]) if NO_S3 in str(error) else {"error": str(error)}
    return {"read": len(record or b"")}


def read_staged(uri: str) -> dict[str, Any]:
    """Returns the answer for an object that is read as by local_data.py: found with HEAD, and then its beginning."""
    store = s3.Store(os.environ)
    pieces: list[int] = []
    try:
        entry = store.find(uri)
        if entry is None:
            return {"refused": "it no longer exists", "code": "NoSuchKey"}
        store.read_range(entry, 0, min(entry.size_bytes, SOME_BYTES), lambda _, piece: pieces.append(len(piece)))
    except OSError as error:
        return {"refused": str(error), "code": getattr(error, "code", "")}
    return {"staged": sum(pieces)}
