"""How fast are this node's disk and GPUs, and do they compute right under load? For `cluster verify --deep`.

The environment's Python runs it. Order, over stdin: {"framework": "mxnet", "pytorch" or "none"}. It prints a JSON line
for each measure: {"measure": its name}, with "value" and "unit", or with "failed" or "skipped": why. It leaves no file.

Python 3.6 and later, standard library only, except for the framework.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

DISK_BYTES, BLOCK_BYTES, DISK_S = 1 << 30, 32 << 20, 10.0  # the most that is written, at once, and how long
SIDE, PRODUCTS, MATMUL_S = 8192, 10, 5.0  # of a matrix; without a pause; how long
PIECE_BYTES, SHARE = 256 << 20, 0.8  # of a GPU's free memory
PATTERNS = (1.4660155037925376e13, -3.0316488252093987e-13)  # as float32, the bits 0101... and 1010...
DCGM_TIMEOUT_S = 600.0  # it takes about two minutes


def attempt(name, measure, *args):
    """Prints what `measure` returns, the other keys of its line. Returns whether it has not failed."""
    try:
        found = measure(*args)
    except Exception as error:  # noqa: BLE001 - of a disk, a driver or a framework; the user sees it
        found = {"failed": f"{type(error).__name__}: {error}"[:500]}
    print(json.dumps({"measure": name, **found}), flush=True)
    return "failed" not in found


def find_rate(act):
    """The rate of `act`, which returns the number of bytes that it moved; 0 at the end."""
    began, moved, last = time.monotonic(), 0, 1
    while last and moved < DISK_BYTES and time.monotonic() - began < DISK_S:
        last = act()
        moved += last
    return {"value": moved / (time.monotonic() - began) / 1e6, "unit": "MB/s"}


def measure_disk(folder):
    """Writes a file that has no name, and reads it again if it was written."""
    block = os.urandom(BLOCK_BYTES)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:

        def write():
            if shutil.disk_usage(folder).free < DISK_BYTES:
                raise OSError("less than 1 GiB is free")
            written = file.write(block)
            os.fdatasync(file.fileno())
            return written

        if attempt("disk write", find_rate, write):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # reads come from the disk
            file.seek(0)
            attempt("disk read", find_rate, lambda: len(file.read(BLOCK_BYTES)))


def use_torch():
    """The GPUs, and how PyTorch draws a matrix, multiplies, fills memory, and finds out how much is free."""
    import torch

    return (
        ["cuda:%d" % i for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)],
        lambda device: torch.rand(SIDE, SIDE, device=device).half(),
        torch.mm,
        lambda device, value: torch.full((PIECE_BYTES // 4,), value, device=device),
        lambda device: torch.cuda.mem_get_info(device)[0],
    )


def use_mxnet():
    """As use_torch."""
    import mxnet as mx

    return (
        [mx.gpu(i) for i in range(mx.context.num_gpus())],
        lambda device: mx.nd.random.uniform(shape=(SIDE, SIDE), ctx=device).astype("float16"),
        mx.nd.dot,
        lambda device, value: mx.nd.full((PIECE_BYTES // 4,), value, ctx=device),
        lambda device: mx.context.gpu_memory_info(device.device_id)[0],
    )


def differs(array, value):
    """Whether a number of an array differs from a value, or from that of another array. Waits for them."""
    return bool((array != value).max())


def multiply(matrix, product):
    """Multiplies the same matrices again and again; each time the result must be the same."""
    first = product(matrix, matrix)
    differs(first, first)
    began, count = time.monotonic(), 0
    while time.monotonic() - began < MATMUL_S:
        for _ in range(PRODUCTS):
            last = product(matrix, matrix)
        count += PRODUCTS
        if differs(last, first):
            return {"failed": "the product of the same matrices came out differently"}
    return {"value": 2 * SIDE**3 * count / (time.monotonic() - began) / 1e12, "unit": "TFLOPS"}


def check_memory(device, fill, find_free):
    """Fills the free memory with one pattern, then with the other, and reads it."""
    pieces = int(find_free(device) * SHARE) // PIECE_BYTES
    for value in PATTERNS:
        arrays = [fill(device, value) for _ in range(pieces)]
        if any(differs(array, value) for array in arrays):
            return {"failed": "it does not hold what was written"}
        del arrays
    return {"value": pieces * PIECE_BYTES / 2**30, "unit": "GiB"}


def measure_gpus(framework):
    """Measures each GPU that the framework sees. Returns the line of a measure if there is none."""
    if framework == "none":
        return {"skipped": "no framework"}
    devices, draw, product, fill, find_free = use_torch() if framework == "pytorch" else use_mxnet()
    for device in devices:
        attempt(f"matmul {device}", lambda: multiply(draw(device), product))  # noqa: B023 - called at once
        attempt(f"memory {device}", check_memory, device, fill, find_free)
    return {} if devices else {"skipped": "no GPU"}


def run_dcgm():
    """Runs NVIDIA's own diagnostics (docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html)."""
    if shutil.which("dcgmi") is None:
        return {"skipped": "no dcgmi"}
    words = ["dcgmi", "diag", "-r", "2"]
    pipe = subprocess.PIPE
    done = subprocess.run(words, check=False, stdout=pipe, stderr=subprocess.STDOUT, timeout=DCGM_TIMEOUT_S)
    return read_dcgm(done.stdout.decode("utf-8", "replace").splitlines())


def read_dcgm(lines):
    """The result in dcgmi's table, such as "| Memory | Fail - GPU 3 |". Pure."""
    rows = list(filter(None, (" ".join(line.replace("|", " ").split()) for line in lines)))
    if any("Fail" in row for row in rows):
        return {"failed": "; ".join(row for row in rows if "Fail" in row)[:500]}
    return {} if any("Pass" in row for row in rows) else {"skipped": "; ".join(rows)[:500]}


def main():
    """Measures the disk, then the GPUs."""
    framework = json.loads(sys.stdin.buffer.readline().decode("utf-8"))["framework"]
    measure_disk(os.path.expanduser("~"))
    attempt("GPUs", measure_gpus, framework)
    attempt("DCGM level 2", run_dcgm)
