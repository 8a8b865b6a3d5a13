"""Do all nodes add up a tensor together? One process per node, a torch.distributed all_reduce of 1, 2, ... n.

Run by the environment's Python at the same time on all nodes. Order, over stdin: {"rank": this node's, "nodes": the
[name, address] of each rank, "port": a free one of rank 0, "backend": "gloo" or "nccl", "timeout_s": of each step}.
JSON lines: {"step": "import" | "store" | "join" | "group" | "reduce"} as it goes, then {"sum": ..., "expected": ...},
or {"missing": names of the nodes that did not join}, or {"error": ...}.

Rank 0 runs a store that all others connect to. It waits for each of them there, and so knows which are missing before
the process group is made, whose own errors name at most an address.

Python 3.6 and later, standard library only, but for PyTorch.
"""

import datetime as dt
import json
import os
import re
import sys
import time

from interfaces import find_interface

GRACE_S = 5.0  # the others wait so much longer than rank 0, to hear what it found


def tell(**said):
    """One line on stdout."""
    print(json.dumps(said), flush=True)


def wait_for(store, keys, timeout_s):
    """The keys that nobody has set in time."""
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
    """Whether somebody has set a key."""
    try:
        store.wait([key], dt.timedelta(milliseconds=50))
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def join(store, order):
    """Meet the others in the store; the names of the nodes that did not come."""
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
    """Take part in one all_reduce."""
    order = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    interface = find_interface(order["nodes"][order["rank"]][1])
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        os.environ["NCCL_SOCKET_IFNAME"] = "=" + interface  # exactly this one, not every one that begins so
    try:
        reduce_all(order)
    except Exception as error:  # noqa: BLE001 - whatever it is, the user reads it
        text = "%s: %s" % (type(error).__name__, error)
        for name, address in order["nodes"]:
            text = re.sub(r"(?<![0-9.])%s(?![0-9])" % re.escape(address), "%s (%s)" % (name, address), text)
        tell(error=text[:4000])
    sys.stdout.flush()
    os._exit(0)  # without waiting for threads of a process group that has failed


def reduce_all(order):
    """Join, make the group, add up. Raises what PyTorch raises."""
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
    if rank == 0:  # its store must not end before the others have finished
        wait_for(store, ["done/%d" % other for other in range(size)], order["timeout_s"])
