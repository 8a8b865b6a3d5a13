"""A worker of `cluster bench`: pushes arrays to MXNet's kv-store, pulls their sums, and prints the rate.

Arguments: the kv-store, [train] gc_type, the number of batches, and the most GPUs that a worker uses: as many as every
node has. Every process of the job runs it; servers and the scheduler never return from `import mxnet`.
"""

import json
import statistics
import sys
import time

COUNTS = (1 << 10,) * 30 + (1 << 20,) * 24  # of numbers in each array: 100 MB, about as much as ResNet-50


def main() -> None:
    """Prints the bytes that this worker sends and receives per second, in the median of the batches."""
    import mxnet as mx  # noqa: PLC0415 - does not return in a server or scheduler

    name, compression, batches, gpus = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    store = mx.kv.create(name)
    if compression != "none":
        store.set_gradient_compression({"type": compression})
    devices = [mx.gpu(i) for i in range(min(gpus, mx.context.num_gpus()))] or [mx.cpu()]
    pushed = [[mx.nd.ones(count, device) for device in devices] for count in COUNTS]
    pulled = [[mx.nd.zeros(count, device) for device in devices] for count in COUNTS]
    store.init(list(range(len(COUNTS))), [mx.nd.zeros(count) for count in COUNTS])
    if "async" in name:  # its servers do not add up
        store.set_optimizer(mx.optimizer.create("sgd"))
    seconds = []
    for _ in range(batches + 1):  # the first one connects
        for arrays in pushed:
            for array in arrays:
                array[:] = 1  # on a CPU, MXNet pulls into what it has pushed
        mx.nd.waitall()
        began = time.monotonic()
        for key in range(len(COUNTS)):
            store.push(key, pushed[key], priority=-key)
            store.pull(key, pulled[key], priority=-key)
        mx.nd.waitall()
        seconds.append(time.monotonic() - began)
    found = {"value": 2 * 4 * sum(COUNTS) / statistics.median(seconds[1:]) / 1e6, "unit": "MB/s"}
    total = store.num_workers * len(devices)
    is_exact = compression == "none" and "async" not in name
    if is_exact and any(bool((array != total).max()) for arrays in pulled for array in arrays):
        found["failed"] = f"the sums of {total} arrays of ones are wrong"
    print(json.dumps({"measure": f"{name} push and pull", **found}), flush=True)


if __name__ == "__main__":
    main()
