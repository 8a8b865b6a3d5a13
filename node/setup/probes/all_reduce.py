"""Do all nodes add up a tensor together? One process per node, a torch.distributed all_reduce of 1, 2, ... n.

The environment's Python runs it at the same time on all nodes. Order, over stdin: {"rank": this node's, "nodes": the
[name, address] of each rank, "port": a free port of rank 0, "backend": "gloo" or "nccl", "timeout_s": of each step}.
It prints JSON lines: {"step": "import" | "store" | "join" | "group" | "reduce"} as it proceeds, then
{"sum": ..., "expected": ...}, {"missing": names of the nodes that did not join}, or {"error": ...}.

Rank 0 runs a store that all other ranks connect to. It waits for each of them at the store, so it knows which nodes are
missing before it creates the process group, whose own errors name at most an address.

Python 3.6 and later, standard library only, except for PyTorch.
"""

import datetime as dt
import json
import os
import re
import sys
import time

from interfaces import find_interface

GRACE_S = 5.0  # the others wait this much longer than rank 0, to get its result


def tell(**said):
    """Prints one line of JSON to stdout."""
    print(json.dumps(said), flush=True)


def wait_for(store, keys, timeout_s):
    """Waits until all keys are set. Returns those that are not set in time."""
    deadline = time.monotonic() + timeout_s
    missing = list(keys)
    while missing:
        left = max(deadline - time.monotonic(), 0.01)
        try:
            store.wait(missing[:1], dt.timedelta(seconds=left))
        except Exception:
            if time.monotonic() < deadline:
                raise
            return [key for key in missing if not has(store, key)]
        missing.pop(0)
    return missing


def has(store, key):
    """Whether a key is set."""
    try:
        store.wait([key], dt.timedelta(milliseconds=50))
    except Exception:  # noqa: BLE001 - after any error, the key counts as not set
        return False
    return True


def join(store, order):
    """Waits for the other nodes at the store. Returns the names of the nodes that did not arrive."""
    rank, names = order["rank"], [name for name, _ in order["nodes"]]
    store.set("joined/%d" % rank, "yes")
    if rank == 0:
        missing = wait_for(store, ["joined/%d" % other for other in range(len(names))], order["timeout_s"])
        found = [names[int(key.partition("/")[2])] for key in missing]
        store.set("missing", json.dumps(found))
        return found
    if wait_for(store, ["missing"], order["timeout_s"] + GRACE_S):
        return [names[0]]
    return json.loads(store.get("missing"))


def main():
    """Takes part in one all_reduce."""
    order = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    interface = find_interface(order["nodes"][order["rank"]][1])
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        os.environ["NCCL_SOCKET_IFNAME"] = "=" + interface  # exactly this name, not every name that begins with it
    try:
        reduce_all(order)
    except Exception as error:  # noqa: BLE001 - every error is shown to the user
        text = "%s: %s" % (type(error).__name__, error)
        for name, address in order["nodes"]:
            text = re.sub(r"(?<![0-9.])%s(?![0-9])" % re.escape(address), "%s (%s)" % (name, address), text)
        tell(error=text[:4000])
    sys.stdout.flush()
    os._exit(0)  # does not wait for threads of a process group that has failed


def reduce_all(order):
    """Joins the other nodes, creates the process group, and adds up the tensor. Raises PyTorch's errors."""
    tell(step="import")
    import torch
    from torch import distributed

    rank, size = order["rank"], len(order["nodes"])
    timeout = dt.timedelta(seconds=order["timeout_s"])
    tell(step="store")
    store = distributed.TCPStore(
        order["nodes"][0][1], order["port"], size, rank == 0, timeout=timeout, wait_for_workers=False
    )
    tell(step="join")
    missing = join(store, order)
    if missing:
        tell(missing=missing)
        return
    tell(step="group")
    device = "cuda:0" if order["backend"] == "nccl" else "cpu"
    if order["backend"] == "nccl":
        torch.cuda.set_device(0)
    distributed.init_process_group(
        order["backend"], store=distributed.PrefixStore("group", store), rank=rank, world_size=size, timeout=timeout
    )
    tell(step="reduce")
    tensor = torch.full((1024,), float(rank + 1), device=device)
    distributed.all_reduce(tensor)
    tell(sum=float(tensor.max()), expected=size * (size + 1) / 2.0)
    store.set("done/%d" % rank, "yes")
    if rank == 0:  # its store must not end before the other ranks have finished
        wait_for(store, ["done/%d" % other for other in range(size)], order["timeout_s"])
