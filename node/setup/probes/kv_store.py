"""How fast is MXNet's kv-store? A worker and a server on each node, and a scheduler, push and pull arrays.

The environment's Python runs it at the same time on all nodes. Order, over stdin: "kv_store", its type, and "nodes",
"rank" and "port" as in all_reduce.py. The worker prints a measure, as node/setup/burn_in.py does: the bytes that it
sends and receives.

Python 3.6 and later, standard library only, except for MXNet.
"""

import json
import os
import statistics
import subprocess
import sys
import time

COUNTS = (1 << 10,) * 30 + (1 << 20,) * 24  # of numbers in each array: 100 MB, about as much as ResNet-50
BATCHES = 10


def main():
    """Starts this node's other processes, and is its worker."""
    order = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    rank, nodes = order["rank"], [address for _, address in order["nodes"]]
    os.environ.pop("OMP_NUM_THREADS", None)  # which other probes need
    os.environ.update(DMLC_NUM_WORKER=str(len(nodes)), DMLC_NUM_SERVER=str(len(nodes)), DMLC_NODE_HOST=nodes[rank])
    os.environ.update(DMLC_PS_ROOT_URI=nodes[0], DMLC_PS_ROOT_PORT=str(order["port"]))
    for role in ["server"] + ["scheduler"] * (rank == 0):
        # It ends with the workers: `import mxnet` does not return before.
        words, env = [sys.executable, "-c", "import mxnet"], dict(os.environ, DMLC_ROLE=role)
        subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    os.environ["DMLC_ROLE"] = "worker"
    print(json.dumps(measure(order["kv_store"])), flush=True)


def measure(name):
    """The rate of this worker, in the median of the batches."""
    import mxnet as mx

    store = mx.kv.create(name)
    arrays = [mx.nd.zeros(count) for count in COUNTS]
    store.init(list(range(len(COUNTS))), arrays)
    if "async" in name:  # its servers do not add up
        store.set_optimizer(mx.optimizer.create("sgd"))
    seconds = []
    for _ in range(BATCHES + 1):  # the first one connects
        for array in arrays:
            array[:] = 1
        mx.nd.waitall()
        began = time.monotonic()
        for key, array in enumerate(arrays):
            store.push(key, array, priority=-key)
            store.pull(key, array, priority=-key)
        mx.nd.waitall()
        seconds.append(time.monotonic() - began)
    rate = 2 * 4 * sum(COUNTS) / statistics.median(seconds[1:]) / 1e6
    is_wrong = "async" not in name and any(bool((array != store.num_workers).max()) for array in arrays)
    found = {"failed": "the sums of arrays of ones are wrong"} if is_wrong else {}
    return dict(measure="%s push and pull" % name, value=rate, unit="MB/s", **found)
