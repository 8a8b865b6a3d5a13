"""Trains nothing with MXNet or PyTorch, until one rank hangs: hangs.py mxnet|torch KIND.

A comment marks the line at which the rank then is. In the second attempt, nothing hangs.
"""

import ctypes
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

LIBRARY, KIND = sys.argv[1:]
CULPRIT, AT = 1, 20
FOREVER_S = 600
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000


class Data:
    def __len__(self):
        return 100

    def __getitem__(self, at):
        if at == 30:
            time.sleep(FOREVER_S)  # item
        return float(at)


def load_in_a_process():
    from torch.utils.data import DataLoader

    for _ in DataLoader(Data(), num_workers=1):  # process
        pass


def load_in_a_thread():
    items = queue.Queue()
    threading.Thread(target=lambda: [items.put(Data()[at]) for at in range(31)], daemon=True).start()
    while True:
        items.get()  # thread


def take_a_lock_twice():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # lock


def sleep():
    time.sleep(FOREVER_S)  # sleep


def hold_the_gil():
    ctypes.PyDLL(None).sleep(FOREVER_S)  # gil


def wait_for_a_signal():
    signal.pause()  # signal


def hang_in_a_handler():
    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(FOREVER_S))  # handler
    os.kill(os.getpid(), signal.SIGUSR1)


def mount_what_never_answers():
    """In a namespace of this process's own, which a process with threads cannot make."""
    library, uid, gid = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    os.makedirs("mounted", exist_ok=True)
    unshared = library.unshare(CLONE_NEWNS | CLONE_NEWUSER)
    for name, text in ("uid_map", f"{uid} {uid} 1"), ("setgroups", "deny"), ("gid_map", f"{gid} {gid} 1"):
        Path("/proc/self", name).write_text(text)
    options = f"fd={os.open('/dev/fuse', os.O_RDWR)},rootmode=40000,user_id={uid},group_id={gid}".encode()
    mounted = library.mount(b"nobody", b"mounted", b"fuse", 0, options)
    assert unshared == mounted == 0, os.strerror(ctypes.get_errno())


def read_a_file():
    Path("mounted/records").read_bytes()  # file


def evaluate_and_save():
    """No hang: it takes 20 s and prints nothing, while the other ranks wait."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        sum(range(10000))
    with open("checkpoint", "wb") as stream:
        while time.monotonic() < until + 10:
            stream.write(bytes(1 << 16))
            time.sleep(0.1)


HANGS = {
    "evaluates": evaluate_and_save,
    "process": load_in_a_process,
    "thread": load_in_a_thread,
    "lock": take_a_lock_twice,
    "sleep": sleep,
    "gil": hold_the_gil,
    "signal": wait_for_a_signal,
    "handler": hang_in_a_handler,
    "file": read_a_file,
}


def train_mxnet():
    import mxnet as mx

    kv, ones = mx.kv.create("dist_sync"), mx.nd.ones((9, 9))
    kv.init("a", ones)
    rank, out, barrier = kv.rank, mx.nd.zeros((9, 9)), kv._barrier

    def reduce():
        kv.push("a", ones)
        kv.pull("a", out=out)
        out.wait_to_read()  # reduce

    train(rank, reduce, barrier)


def write_what_is_recorded(rank):
    """Gloo's process group records what it does, but no thread of it waits at a pipe, as one of NCCL's does."""
    from torch._C._distributed_c10d import _dump_fr_trace

    pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + f"{rank}.pipe"
    os.mkfifo(pipe)

    def write():
        while True:
            with open(pipe) as stream:
                stream.read()
            with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank), "wb") as stream:
                stream.write(_dump_fr_trace())

    threading.Thread(target=write, daemon=True).start()


def train_torch():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    write_what_is_recorded(dist.get_rank())
    ones = torch.ones(9)

    def reduce():
        dist.all_reduce(ones)  # reduce

    train(dist.get_rank(), reduce, dist.barrier)
    dist.destroy_process_group()


def train(rank, reduce, barrier):
    is_first = os.environ["CLUSTER_ATTEMPT"] == "1"
    acts = is_first and rank == CULPRIT
    print("waits for the others", flush=True)
    for step in range(10**6 if is_first and KIND != "evaluates" else 2 * AT):
        if acts and step == AT and KIND in HANGS:
            HANGS[KIND]()
        if not (acts and step == AT and KIND == "skips"):
            reduce()
        if step % 10 == 0:
            barrier()  # skips
        time.sleep(0.02)


if __name__ == "__main__":
    if KIND == "file":
        mount_what_never_answers()
    {"mxnet": train_mxnet, "torch": train_torch}[LIBRARY]()
