"""Does MXNet itself read an object of S3 here, as a job would? Run by the environment's Python for `cluster verify`.

An order on stdin: {"uri": ..., "env": {...}, "secrets": {...}, "nodes_credentials": true for the instance's own}. One
JSON line: {"read": bytes of its first record}, {"error": MXNet's words} or {"credentials": why there are none}.

Python 3.6 and later, standard library only, but for MXNet.
"""

import json
import os
import sys

import instance_credentials


def main():
    """Open it and read one record."""
    order = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    print(json.dumps(read(order)), flush=True)


def read(order):
    """What the one line says."""
    try:
        instance_credentials.take(order)
    except instance_credentials.CredentialsError as error:
        return {"credentials": str(error)}
    # Read by dmlc-core when it opens its first s3:// URI.
    os.environ.update(order["env"])
    os.environ.update(order["secrets"])
    import mxnet as mx

    try:
        record = mx.recordio.MXRecordIO(order["uri"], "r").read()
    except mx.base.MXNetError as error:
        return {"error": str(error)}
    return {"read": len(record or b"")}
