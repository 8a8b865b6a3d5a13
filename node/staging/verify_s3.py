"""Checks for `cluster verify` whether a job on this node can read an object of S3.

Its argument is the environment's Python. Reads an order from stdin: {"uri": ..., "env": {...}, "secrets": {...},
"nodes_credentials": true for the instance's own}. Prints one JSON line: {"read": bytes of the first record},
{"error": MXNet's message} or {"credentials": why there are none}. Without MXNet, or if it was built without S3, it
prints {"staged": bytes read} or {"refused": why not, "code": ...}. If MXNet crashes, so does this program. With
"is_deep", it also prints the rate, as node/setup/burn_in.py does.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from node import instance_credentials
from node.setup import process_tree
from node.staging import s3

# For the environment's Python. The answer is {} without an MXNet that was built with S3. The secrets come from stdin:
# /proc shows the environment that a process began with, and dmlc-core reads it at the first s3:// URI.
READ_RECORD = """
import json, os, sys
order = json.loads(sys.stdin.readline())
os.environ.update(order["env"])
try:
    import mxnet as mx
except ModuleNotFoundError as error:
    if error.name != "mxnet":
        raise
    print("{}")
    sys.exit()
try:
    answer = {"read": len(mx.recordio.MXRecordIO(order["uri"], "r").read() or b"")}
except mx.base.MXNetError as error:
    answer = {} if "DMLC_USE_S3" in str(error) else {"error": str(error)}
print(json.dumps(answer), flush=True)
"""
SOME_BYTES = 65536
RANGE_BYTES, RANGES, AT_ONCE, MEASURED_S = 4 << 20, 256, 16, 5.0


def main() -> None:
    """Reads an order, and prints the answer."""
    order = json.loads(sys.stdin.readline())
    print(json.dumps(read(order, python=sys.argv[1])), flush=True)
    if order["is_deep"]:
        print(json.dumps({"measure": "S3 read", **measure(order["uri"])}), flush=True)


def read(order: dict[str, Any], *, python: str) -> dict[str, Any]:
    """Returns the answer to an order. python: that of the environment. Ends as that Python does if it crashes."""
    try:
        secrets = instance_credentials.wait_for().variables if order["nodes_credentials"] else order["secrets"]
    except instance_credentials.CredentialsError as error:
        return {"credentials": str(error)}
    variables = {**order["env"], **secrets}
    given = json.dumps({"uri": order["uri"], "env": variables}) + "\n"
    words = [python, "-c", READ_RECORD]
    die = process_tree.die_with_parent
    done = subprocess.run(words, input=given, stdout=subprocess.PIPE, encoding="utf-8", check=False, preexec_fn=die)
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not answers:
        os.kill(os.getpid(), -done.returncode) if done.returncode < 0 else sys.exit(done.returncode)
    os.environ.update(variables)
    answer: dict[str, Any] = json.loads(answers[-1])
    return answer or read_staged(order["uri"])


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


def measure(uri: str) -> dict[str, Any]:
    """Reads ranges of an object in parallel, again from its beginning after its end. Returns the rate, or why not."""
    began, moved = time.monotonic(), []

    def read_range(store: s3.Store, entry: s3.Entry, number: int) -> None:
        if time.monotonic() - began < MEASURED_S:
            begin = number * RANGE_BYTES % entry.size_bytes
            length = min(RANGE_BYTES, entry.size_bytes - begin)
            store.read_range(entry, begin, length, lambda _, piece: moved.append(len(piece)))

    try:
        store = s3.Store(os.environ)
        entry = store.find(uri)
        if entry is None:
            return {"failed": "it no longer exists"}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(partial(read_range, store, entry), range(RANGES)))
    except OSError as error:
        return {"failed": str(error)}
    return {"value": sum(moved) / (time.monotonic() - began) / 1e6, "unit": "MB/s"}
