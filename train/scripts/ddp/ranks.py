"""Joins the other ranks in a process group, and exchanges values with them.

There are two groups: Gloo on the CPU for numbers and checkpoints, and one for gradients: NCCL if every rank has a GPU,
otherwise Gloo.
"""

import contextlib
import json
import os
import re
import time
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist
from common import ScriptError

from ddp.options import is_distributed

_POLL_S = 0.1
_WORDS_OF_A_LOST_RANK = re.compile(r"connection (closed|reset)|broken pipe|nccl|timed out|socket", re.IGNORECASE)


class Ranks(NamedTuple):
    """This process's place among the job's processes.

    device: where it computes. gradients: the group that averages gradients; None: this process is the only one, without
    a process group.
    """

    rank: int
    count: int
    device: torch.device
    gradients: Optional[Any]

    def sum(self, numbers: Sequence[float]) -> List[float]:
        """The sums over all ranks."""
        total = torch.tensor(numbers, dtype=torch.float64)
        if self.gradients is not None:
            dist.all_reduce(total)
        return [float(number) for number in total]

    def share(self, find: Callable[[], Any]) -> Any:
        """Returns on every rank what `find` returns on rank 0, as JSON, or raises the ScriptError that it raises there.

        Not broadcast_object_list, which needs NumPy: PyTorch can be installed without it.
        """
        if self.gradients is None:
            return find()
        text = b""
        if self.rank == 0:
            try:
                text = json.dumps({"found": find()}).encode("utf-8")
            except ScriptError as error:
                text = json.dumps({"error": str(error)}).encode("utf-8")
        size = torch.tensor([len(text)])
        dist.broadcast(size, src=0)
        content = torch.tensor(list(text) or [0] * int(size), dtype=torch.uint8)
        dist.broadcast(content, src=0)
        shared = json.loads(bytes(content.tolist()).decode("utf-8"))
        if "error" in shared:
            raise ScriptError(shared["error"])
        return shared["found"]

    def broadcast(self, values: torch.Tensor) -> torch.Tensor:
        """Rank 0's values, on every rank; values: on the CPU, and overwritten."""
        if self.gradients is not None:
            dist.broadcast(values, src=0)
        return values


@contextlib.contextmanager
def join(backend: str, timeout_s: int) -> Iterator[Ranks]:
    """Joins the other ranks, and leaves the group at the end of the block.

    backend: auto, gloo or nccl. timeout_s: the time for all ranks to join. Raises ScriptError if the group does not
    form, a rank has no GPU for nccl, or the connection to another rank breaks later.
    """
    gpu = find_gpu(os.environ, torch.cuda.device_count())
    if not is_distributed(os.environ):
        if backend == "nccl" and gpu is None:
            raise ScriptError("--dist-backend nccl: PyTorch finds no GPU here")
        yield Ranks(0, 1, _device(gpu), None)
        return
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _open_store(rank, count, timedelta(seconds=timeout_s))
    with _explained(f"rank {rank} of {count} joined, but the ranks cannot connect to each other{_interface()}"):
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
    alone = Ranks(rank, count, _device(None), dist.group.WORLD)
    with_gpu = round(alone.sum([gpu is not None])[0])
    if backend == "nccl" and with_gpu < count:
        raise ScriptError(f"--dist-backend nccl needs a GPU for every rank: {with_gpu} of {count} ranks have one")
    device = _device(gpu if with_gpu == count else None)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    gradients = dist.new_group(backend="nccl") if device.type == "cuda" and backend != "gloo" else alone.gradients
    with _explained(f"rank {rank} of {count} lost contact with another rank, whose own output says why", _is_of_a_lost):
        yield Ranks(rank, count, device, gradients)
        dist.barrier()  # rank 0 keeps the store until all have finished
    dist.destroy_process_group()


def find_gpu(environment: Dict[str, str], found: int) -> Optional[int]:
    """The number of this rank's own GPU among the `found` ones; None without one. Pure."""
    local_rank = int(environment.get("LOCAL_RANK") or 0)
    if local_rank < found:
        return local_rank
    # A launcher may show every process only its own GPU.
    return 0 if found == 1 and environment.get("CUDA_VISIBLE_DEVICES") else None


def _device(gpu: Optional[int]) -> torch.device:
    return torch.device("cpu") if gpu is None else torch.device("cuda", gpu)


def _open_store(rank: int, count: int, timeout: timedelta) -> Any:
    """The store at MASTER_ADDR, through which ranks find each other. Raises ScriptError unless all ranks join it."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # torchrun's agent may already run the store for its ranks.
    of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    place = f"MASTER_ADDR={address} MASTER_PORT={port}"
    what = "opens the store" if rank == 0 and not of_agent else "cannot reach rank 0's store"
    with _explained(f"the process group did not form: rank {rank} of {count} {what} at {place}"):
        store = dist.TCPStore(address, port, count, rank == 0 and not of_agent, timeout, wait_for_workers=False)
    store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    with _explained(f"the process group did not form: the store at {place} ended before all ranks joined"):
        missing = _wait_for_all(store, rank, count, timeout)
    if missing:
        listed = f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))}"
        raise ScriptError(
            f"the process group did not form: {listed} of {count} did not join at {place} within {timeout.seconds} s"
        )
    return store


def _wait_for_all(store: Any, rank: int, count: int, timeout: timedelta) -> List[int]:
    """Joins; returns the ranks that have not joined in time.

    Polls the store: one whose `wait` has timed out cannot tell which ranks are missing.
    """
    store.add(f"joined/{rank}", 1)
    missing = list(range(count))
    ends_at = time.monotonic() + timeout.total_seconds()
    while True:
        missing = [number for number in missing if not store.add(f"joined/{number}", 0)]
        if not missing or time.monotonic() > ends_at:
            return missing
        time.sleep(_POLL_S)


def _interface() -> str:
    name = os.environ.get("GLOO_SOCKET_IFNAME")
    return f" over {name} (GLOO_SOCKET_IFNAME)" if name else ""


@contextlib.contextmanager
def _explained(words: str, applies: Callable[[str], bool] = bool) -> Iterator[None]:
    """Turns PyTorch's errors whose text `applies` accepts into a ScriptError that begins with these words."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if not applies(str(error)):
            raise
        raise ScriptError(f"{words}: {_first_line(error)}") from error


def _is_of_a_lost(text: str) -> bool:
    return _WORDS_OF_A_LOST_RANK.search(text) is not None


def _first_line(error: Exception) -> str:
    """An error's message, without PyTorch's C++ frames."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
