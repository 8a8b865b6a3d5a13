"""How fast is this node's disk, and what does NVIDIA's diagnostics say? For `cluster verify --deep`.

Prints a JSON line for each measure: {"measure": its name}, with "value" and "unit", or with "failed" or "skipped": why.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

MOST_BYTES, BLOCK_BYTES, MOST_S = 1 << 30, 32 << 20, 10.0  # what is written in all, and at once, and for how long
DCGM_TIMEOUT_S = 600.0  # it takes about two minutes


def attempt(name: str, measure: Callable[[], dict[str, Any]]) -> bool:
    """Prints what `measure` returns, the other keys of its line. Returns whether it has not failed."""
    try:
        found = measure()
    except (OSError, subprocess.SubprocessError) as error:
        found = {"failed": f"{type(error).__name__}: {error}"[:500]}
    print(json.dumps({"measure": name, **found}), flush=True)
    return "failed" not in found


def find_rate(act: Callable[[], int]) -> dict[str, Any]:
    """The rate of `act`, which returns the number of bytes that it moved; 0 at the end."""
    began, moved, last = time.monotonic(), 0, 1
    while last and moved < MOST_BYTES and time.monotonic() - began < MOST_S:
        last = act()
        moved += last
    return {"value": moved / (time.monotonic() - began) / 1e6, "unit": "MB/s"}


def measure_disk(folder: str) -> None:
    """Writes a file that has no name, and reads it again if it was written."""
    block = os.urandom(BLOCK_BYTES)

    def write() -> int:
        written = file.write(block)
        os.fdatasync(file.fileno())
        return written

    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        if attempt("disk write", lambda: find_rate(write)):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # reads come from the disk
            file.seek(0)
            attempt("disk read", lambda: find_rate(lambda: len(file.read(BLOCK_BYTES))))


def run_dcgm() -> dict[str, Any]:
    """Runs NVIDIA's diagnostics (docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html)."""
    if shutil.which("dcgmi") is None:
        return {"skipped": "no dcgmi"}
    words, both = ["dcgmi", "diag", "-r", "2"], subprocess.STDOUT
    done = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=both, timeout=DCGM_TIMEOUT_S)
    return read_dcgm(done.stdout.decode("utf-8", "replace"))


def read_dcgm(text: str) -> dict[str, Any]:
    """The result in dcgmi's table, such as "| Memory | Fail - GPU 3 |". Pure."""
    rows = [" ".join(line.replace("|", " ").split()) for line in text.splitlines()]
    failed = "; ".join(row for row in rows if "Fail" in row)
    if failed or "Pass" in text:
        return {"failed": failed[:500]} if failed else {}
    return {"skipped": " ".join(rows)[:500]}


def main() -> None:
    """Measures the disk, then runs the diagnostics."""
    measure_disk(os.path.expanduser("~"))
    attempt("DCGM level 2", run_dcgm)
