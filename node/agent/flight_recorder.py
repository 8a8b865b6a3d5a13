"""Reads PyTorch's flight recorder: which collective of each process group a process is in, and which it entered last.

With a process group of NCCL, PyTorch 2.12 and later record this by themselves, and make a pipe. Once something comes
out of it, a thread of theirs writes what is recorded to a file, also while the program hangs. Gloo has no such thread.
docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
"""

import asyncio
import contextlib
import glob
import io
import os
import pickle
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from msgspec import Struct
from msgspec.structs import replace

from foundation.decode import convert
from node.job.stacks import LONGEST_NAME, Collective
from node.protocol import Count, printable

PIPE, FILE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE"
OLD_FILE = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"  # has the same effect
TIMEOUT_S, CHECK_EVERY_S = 6.0, 0.1  # PyTorch looks at the pipe once a second, and 2000 calls take another
MOST_BYTES = 1 << 26  # the 2000 collectives that PyTorch records have 0.4 MB
MOST_GROUPS = 16


class Entry(Struct):
    """What PyTorch has recorded of a collective. process_group: its name, and what it is for."""

    process_group: tuple[str, str]
    collective_seq_id: Count
    profiling_name: str
    state: str
    input_sizes: list[list[int]] = []
    retired: bool = False
    is_p2p: bool = False

    @property
    def is_finished(self) -> bool:
        """Of Gloo's, the state does not say."""
        return self.retired or self.state == "completed"


class Unpickler(pickle.Unpickler):
    """Reads containers, texts and numbers only: a pickle of the job's process could call any function here."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuses."""
        raise pickle.UnpicklingError(f"{module}.{name}")


class Recorder:
    """The flight recorder of a process of a job on this host, also in a container.

    pipe, record: the paths of its pipe and its file, as far as the rank. The file is read and removed; one that it
    writes by itself, after a timeout of NCCL, is the user's.
    """

    def __init__(self, pipe: str, record: str) -> None:
        self._pipe, self._record = pipe, record
        self._writing, self._was_written = 0, False

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables with which it writes where this class reads, unless `env` has some of them."""
        return {} if any(name in env for name in (PIPE, FILE, OLD_FILE)) else {PIPE: self._pipe, FILE: self._record}

    def was_written(self) -> bool:
        """Whether it has, or may have, written its file since the last call: that is no progress."""
        was, self._was_written = self._was_written, self._writing > 0
        return was

    async def read(self) -> tuple[Collective, ...] | None:
        """What is recorded, one for each process group; None if there is no pipe, or the process does not answer."""
        pipe = next(iter(glob.glob(f"{self._pipe}*.pipe")), "")
        record = self._record + pipe.removeprefix(self._pipe).removesuffix(".pipe")
        if not pipe or not _ask(pipe, record):
            return None
        self._writing, self._was_written = self._writing + 1, True
        until = time.monotonic() + TIMEOUT_S
        try:
            while time.monotonic() < until:
                await asyncio.sleep(CHECK_EVERY_S)
                with contextlib.suppress(Exception):  # it is not there yet, or not whole; a pickle may raise anything
                    return find_collectives(await asyncio.to_thread(load, record))
            return None
        finally:
            self._writing -= 1
            if not self._writing:
                _remove(record)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _ask(pipe: str, record: str) -> bool:
    """Has the file written anew. Returns whether somebody reads the pipe."""
    _remove(record)
    with contextlib.suppress(OSError), open(pipe, "wb", buffering=0, opener=_open) as stream:
        return bool(stream.write(b"\n"))
    return False


def _open(path: str, flags: int) -> int:
    """A program in a container may have put a link there, or another pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def load(path: str) -> list[Entry]:
    """Reads PyTorch's file, the oldest entry first. Raises OSError, ValueError, KeyError, and what a pickle raises."""
    with open(path, "rb", opener=_open) as stream:
        found = Unpickler(io.BytesIO(stream.read(MOST_BYTES))).load()
    return convert(found["entries"], list[Entry])


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
    return tuple(_describe(*group, found) for group, found in list(groups.items())[:MOST_GROUPS])


def _describe(name: str, about: str, entries: Sequence[Entry]) -> Collective:
    """entries: the last one that is finished, if any is, and those that are not."""
    group = printable(name if about in ("", "undefined") else f"{name} ({about})", LONGEST_NAME)
    found = Collective(group=group, entered=entries[-1].collective_seq_id)
    first = next((entry for entry in entries if not entry.is_finished), None)
    if first is None:
        return found
    sizes = ", ".join("x".join(map(str, size)) or "1" for size in first.input_sizes)
    call = first.profiling_name.rpartition(":")[2] + (f" of {sizes}" if sizes else "")
    return replace(found, number=first.collective_seq_id, call=printable(call, LONGEST_NAME))
