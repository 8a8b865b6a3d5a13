"""A worker of `cluster bench`: pushes arrays to MXNet's kv-store, pulls their sums, and prints the rate.

Arguments: the kv-store, and [train] gc_type. Every process of the job runs it; servers and the scheduler never return
from `import mxnet`.
"""

import json
import statistics
import sys
import time

COUNTS = (1 << 10,) * 30 + (1 << 20,) * 24  # of numbers in each array: 100 MB, about as much as ResNet-50
BATCHES = 10


def main() -> None:
    """Prints the bytes that this worker sends and receives per second, in the median of the batches."""
    import mxnet as mx  # noqa: PLC0415 - does not return in a server or scheduler

    name, compression = sys.argv[1:]
    store = mx.kv.create(name)
    if compression != "none":
        store.set_gradient_compression({"type": compression})
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
    found = {"value": 2 * 4 * sum(COUNTS) / statistics.median(seconds[1:]) / 1e6, "unit": "MB/s"}
    is_exact = compression == "none" and "async" not in name
    if is_exact and any(bool((array != store.num_workers).max()) for array in arrays):
        found["failed"] = f"the sums of {store.num_workers} arrays of ones are wrong"
    print(json.dumps({"measure": f"{name} push and pull", **found}), flush=True)


if __name__ == "__main__":
    main()
