"""Reads PyTorch's flight recorder: which collective of each process group a process is in, and which it entered last.

With a process group of NCCL, PyTorch 2.12 and later record this by themselves, and make a pipe. Once something comes
out of it, a thread of theirs writes what is recorded to a file, also while the program hangs. Gloo has no such thread.
docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
"""

import asyncio
import glob
import io
import os
import pickle
import stat
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from msgspec import Struct

from foundation.decode import convert
from node.job.stacks import LONGEST_NAME, Collective
from node.protocol import printable

PIPE, FILE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE"
OLD_FILE = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"  # up to PyTorch 2.7, and still read
TIMEOUT_S, CHECK_EVERY_S = 4.0, 0.1  # PyTorch looks at the pipe once a second
MOST_BYTES = 1 << 26  # 2000 collectives, as PyTorch records, have 0.4 MB
MOST_GROUPS, MOST_SIZES = 16, 4
# A program in a container may write to this folder, too.
FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK


class Entry(Struct):
    """What PyTorch has recorded of a collective. process_group: its name, and what it is for."""

    process_group: tuple[str, str]
    collective_seq_id: int
    profiling_name: str
    state: str
    input_sizes: list[list[int]] = []
    retired: bool = False
    is_p2p: bool = False

    @property
    def is_finished(self) -> bool:
        """Gloo's have no state of this name."""
        return self.retired or self.state == "completed"


class Dump(Struct):
    """The part of PyTorch's file that is read. entries: the oldest one first."""

    entries: list[Entry] = []


class Unpickler(pickle.Unpickler):
    """Reads containers, texts and numbers only: a pickle of the job's process could run any function here."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuses."""
        raise pickle.UnpicklingError(f"{module}.{name}")


def variables(folder: str, number: int, env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with which process `number` writes to this folder, unless `env` has some of them. Pure."""
    is_set = any(name in env for name in (PIPE, FILE, OLD_FILE))
    return {} if is_set else dict.fromkeys((PIPE, FILE), _stem(folder, number))


async def read(folder: str, number: int) -> tuple[Collective, ...] | None:
    """What process `number` has recorded, one for each process group; None if it has no pipe, or does not answer."""
    pipe = next(iter(glob.glob(f"{glob.escape(_stem(folder, number))}*.pipe")), None)
    if pipe is None:
        return None
    path, until = pipe.removesuffix(".pipe"), time.monotonic() + TIMEOUT_S
    try:
        _ask(pipe, path)
    except OSError:  # it has ended
        return None
    while time.monotonic() < until:
        await asyncio.sleep(CHECK_EVERY_S)
        try:
            return find_collectives(await asyncio.to_thread(_load, path))
        except Exception:  # noqa: BLE001, S112 - not there yet, or not whole; a pickle may raise anything
            continue
    return None


def _stem(folder: str, number: int) -> str:
    """How the names of its pipe and its file begin. The rank follows."""
    return os.path.join(folder, f"recorder-{number}-")


def _ask(pipe: str, path: str) -> None:
    """Has the pipe's process write the file anew. Raises OSError."""
    descriptor = os.open(pipe, os.O_WRONLY | FLAGS)
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            if os.path.lexists(path):
                os.unlink(path)
            os.write(descriptor, b"\n")
    finally:
        os.close(descriptor)


def _load(path: str) -> Sequence[Entry]:
    with open(os.open(path, os.O_RDONLY | FLAGS), "rb") as stream:
        return parse(stream.read(MOST_BYTES))


def parse(data: bytes) -> Sequence[Entry]:
    """Reads PyTorch's file. Raises whatever a pickle may raise, and ValueError."""
    found: Any = Unpickler(io.BytesIO(data)).load()
    return convert(found, Dump).entries


def find_collectives(entries: Sequence[Entry]) -> tuple[Collective, ...]:
    """The collectives that a process is in, one for each process group. Pure.

    Those of a group finish one after another: what was recorded before one that is finished is so, too.
    """
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if not entry.is_p2p:
            groups.setdefault(entry.process_group, []).append(entry)
            if entry.is_finished:
                groups[entry.process_group] = [entry]
    return tuple(_describe(*key, found) for key, found in list(groups.items())[:MOST_GROUPS])


def _describe(name: str, about: str, entries: Sequence[Entry]) -> Collective:
    """entries: the last one that is finished, if any is, and those that are not."""
    first = next((entry for entry in entries if not entry.is_finished), None)
    group = printable(name if about in ("", "undefined") else f"{name} ({about})", LONGEST_NAME)
    entered = entries[-1].collective_seq_id
    if first is None:
        return Collective(group=group, entered=entered)
    sizes = ", ".join("x".join(map(str, size)) or "1" for size in first.input_sizes[:MOST_SIZES])
    text = first.profiling_name.rpartition(":")[2] + (f" of {sizes}" if sizes else "")
    return Collective(group=group, entered=entered, number=first.collective_seq_id, call=printable(text, LONGEST_NAME))
