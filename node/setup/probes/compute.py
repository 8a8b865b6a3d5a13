"""Does the framework compute here? ones((2,3))*2+1 on every GPU, or on the CPU if it sees no GPU.

The environment's Python runs it. Order, over stdin: {"framework": "mxnet" or "pytorch", "is_deep": whether to measure
the GPUs}. It prints JSON lines: {"wheel": ...} as pip names it, {"version": ...} once the framework is imported, then
for each device {"trying": ...} and {"device": ..., "values": ...} or {"device": ..., "error": ...}. If the framework
cannot be imported, the process ends with Python's traceback on stderr. Measures are those of node/setup/burn_in.py.

Python 3.6 and later, standard library only, except for the framework.
"""

import glob
import json
import os
import sys
import sysconfig
import time

SIDE, MATMUL_S = 8192, 5.0  # of a matrix; how long
PIECE_BYTES, SHARE = 256 << 20, 0.8  # of a GPU's free memory
PATTERNS = (1.4660155037925376e13, -3.0316488252093987e-13)  # as float32, the bits 0101... and 1010...


def report(**message):
    """Prints one line of JSON to stdout."""
    print(json.dumps(message), flush=True)


def use_mxnet():
    """The devices, the error that they may raise, and functions of MXNet."""
    for path in glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "mxnet*.dist-info"))[:1]:
        name, _, version = os.path.basename(path)[: -len(".dist-info")].partition("-")
        report(wheel="%s==%s" % (name.replace("_", "-"), version))
    import mxnet as mx

    report(version=mx.__version__)
    return {
        "devices": [mx.gpu(i) for i in range(mx.context.num_gpus())] or [mx.cpu()],
        "error": mx.base.MXNetError,
        "compute": lambda device: (mx.nd.ones((2, 3), ctx=device) * 2 + 1).asnumpy(),
        "draw": lambda device: mx.nd.random.uniform(shape=(SIDE, SIDE), ctx=device).astype("float16"),
        "square": lambda matrix: mx.nd.dot(matrix, matrix),
        "fill": lambda device, value: mx.nd.full((PIECE_BYTES // 4,), value, ctx=device),
        "find_free": lambda device: mx.context.gpu_memory_info(device.device_id)[0],
    }


def use_torch():
    """As use_mxnet."""
    import torch

    report(wheel="torch==%s" % torch.__version__, version=str(torch.__version__))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "devices": ["cuda:%d" % i for i in range(count)] or ["cpu"],
        "error": RuntimeError,
        "compute": lambda device: torch.ones((2, 3), device=device) * 2 + 1,
        "draw": lambda device: torch.rand(SIDE, SIDE, device=device).half(),
        "square": lambda matrix: torch.mm(matrix, matrix),
        "fill": lambda device, value: torch.full((PIECE_BYTES // 4,), value, device=device),
        "find_free": lambda device: torch.cuda.mem_get_info(device)[0],
    }


def differs(array, value):
    """Whether a number of an array differs from a value, or from that of another array. Waits for them."""
    return bool((array != value).max())


def multiply(library, device):
    """Multiplies the same matrix with itself again and again; each time the result must be the same."""
    matrix = library["draw"](device)
    first = library["square"](matrix)
    differs(first, first)
    began, count = time.monotonic(), 0
    while time.monotonic() - began < MATMUL_S:
        if differs(library["square"](matrix), first):
            return {"failed": "the product of the same matrices came out differently"}
        count += 1
    return {"value": 2 * SIDE**3 * count / (time.monotonic() - began) / 1e12, "unit": "TFLOPS"}


def check_memory(library, device):
    """Fills the free memory with one pattern, then with the other, and reads it."""
    pieces = int(library["find_free"](device) * SHARE) // PIECE_BYTES
    for value in PATTERNS:
        arrays = [library["fill"](device, value) for _ in range(pieces)]
        if any(differs(array, value) for array in arrays):
            return {"failed": "it does not hold what was written"}
        del arrays
    return {"value": pieces * PIECE_BYTES / 2**30, "unit": "GiB"}


def measure_gpus(library):
    """Measures each GPU."""
    for device in library["devices"]:
        for name, measure in ("matmul", multiply), ("memory", check_memory):
            try:
                found = measure(library, device)
            except library["error"] as error:
                found = {"failed": "%s: %s" % (type(error).__name__, error)}
            report(measure="%s %s" % (name, device), **found)


def main():
    """Computes on every device."""
    order = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    library = use_mxnet() if order["framework"] == "mxnet" else use_torch()
    for device in library["devices"]:
        report(trying=str(device))
        try:
            values = library["compute"](device).tolist()
            # JSON has neither nan nor inf, which a faulty device may compute.
            values = [[value if abs(value) < float("inf") else str(value) for value in row] for row in values]
        except library["error"] as error:
            report(device=str(device), error=str(error))
        else:
            report(device=str(device), values=values)
    if order["is_deep"] and "cpu" not in str(library["devices"][0]):
        measure_gpus(library)
