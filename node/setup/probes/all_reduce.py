"""Do all nodes add up a tensor together? One process per node, a torch.distributed all_reduce of 1, 2, ... n.

The environment's Python runs it at the same time on all nodes. Order, over stdin: {"rank": this node's, "interface":
the name of its network interface or null, "nodes": the [name, address] of each rank, "port": a free port of rank 0,
"backend": "gloo" or "nccl", "timeout_s": of each step, "kv_store": null if no rates are to be measured}.
It prints JSON lines: {"step": "import" | "store" | "join" | "group" | "reduce"} as it proceeds, then
{"sum": ..., "expected": ...}, {"missing": names of the nodes that did not join}, or {"error": ...}. With rates also
{"measure": ..., "value": ..., "unit": "GB/s"}: rank 0 those of all nodes, each rank that of its best pair of nodes.

Rank 0 runs a store that all other ranks connect to. Each rank waits there for the others, so it knows which nodes are
missing before it creates the process group, whose own errors name at most an address.

Python 3.6 and later, standard library only, except for PyTorch.
"""

import datetime as dt
import json
import os
import re
import sys
import time

SIZES_MIB, PAIR_MIB, REPEATS = (1, 16, 128), 16, 5


def report(**message):
    """Prints one line of JSON to stdout."""
    print(json.dumps(message), flush=True)


def find_missing(store, order):
    """Waits for all nodes at the store. Returns the names of the nodes that do not arrive in time."""
    deadline = time.monotonic() + order["timeout_s"]
    missing = []
    for rank, (name, _) in enumerate(order["nodes"]):
        left_s = max(deadline - time.monotonic(), 0.05)
        try:
            store.wait(["joined/%d" % rank], dt.timedelta(seconds=left_s))
        except Exception:  # noqa: BLE001 - also if the store is gone
            missing.append(name)
    return missing


def main():
    """Takes part in one all_reduce."""
    order = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    interface = order["interface"]
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        os.environ["NCCL_SOCKET_IFNAME"] = "=" + interface  # exactly this name, not every name that begins with it
    try:
        reduce_all(order)
    except Exception as error:  # noqa: BLE001 - every error is shown to the user
        text = "%s: %s" % (type(error).__name__, error)
        for name, address in order["nodes"]:
            text = re.sub(r"(?<![0-9.])%s(?![0-9])" % re.escape(address), "%s (%s)" % (name, address), text)
        report(error=text[:4000])
    sys.stdout.flush()
    os._exit(0)  # does not wait for threads of a process group that has failed


def find_rate(distributed, tensor, size, group=None):
    """The bytes that each rank sends in GB/s, in the median of a few all_reduces: the bus bandwidth of nccl-tests."""
    took = []
    for _ in range(REPEATS):
        began = time.monotonic()
        distributed.all_reduce(tensor, group=group)
        float(tensor[0])  # waits for it
        took.append(time.monotonic() - began)
    return 2 * (size - 1) / size * tensor.numel() * 4 / sorted(took)[REPEATS // 2] / 1e9


def measure(distributed, make, rank, size):
    """Prints the rates. A slow node makes the all_reduce of all nodes slow; only the slow node is slow in each pair."""
    ring, best, half = [(one, (one + 1) % size) for one in range(size)], 0.0, size // 2
    rounds = (ring[0::2][:half], ring[1::2], ring[2 * half :]) if size > 2 else ()  # in each, a rank is in one pair
    for pairs in rounds:
        for pair, group in [(pair, distributed.new_group(sorted(pair))) for pair in pairs]:
            best = max(best, find_rate(distributed, make(PAIR_MIB), 2, group)) if rank in pair else best
        distributed.barrier()
    if size > 2:
        report(measure="network", value=best, unit="GB/s")
    for mib in SIZES_MIB:
        rate = find_rate(distributed, make(mib), size)
        if rank == 0:
            report(measure="all_reduce %d MiB" % mib, value=rate, unit="GB/s")


def reduce_all(order):
    """Joins the other nodes, creates the process group, and adds up the tensor. Raises PyTorch's errors."""
    report(step="import")
    import torch
    from torch import distributed

    rank, size = order["rank"], len(order["nodes"])
    timeout = dt.timedelta(seconds=order["timeout_s"])
    report(step="store")
    store = distributed.TCPStore(
        order["nodes"][0][1], order["port"], size, rank == 0, timeout=timeout, wait_for_workers=False
    )
    report(step="join")
    store.set("joined/%d" % rank, "yes")
    missing = find_missing(store, order)
    if missing:
        report(missing=missing)
        return
    report(step="group")
    device = "cuda:0" if order["backend"] == "nccl" else "cpu"
    if order["backend"] == "nccl":
        torch.cuda.set_device(0)
    distributed.init_process_group(
        order["backend"], store=distributed.PrefixStore("group", store), rank=rank, world_size=size, timeout=timeout
    )
    report(step="reduce")
    tensor = torch.full((1024,), float(rank + 1), device=device)
    distributed.all_reduce(tensor)
    report(sum=float(tensor.max()), expected=size * (size + 1) / 2.0)
    if order["kv_store"] and size > 1:
        measure(distributed, lambda mib: torch.zeros(mib << 18, device=device), rank, size)
    store.set("done/%d" % rank, "yes")
    if rank == 0:  # its store must not end before the other ranks have finished
        store.wait(["done/%d" % other for other in range(size)], timeout)
