"""A fake libnvidia-ml.so.1, built by the machine's C compiler."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from foundation.decode import decode
from node.health import Gpu
from project import REPOSITORY

SOURCE = Path(__file__).with_name("fake_nvml.c")
COMPILER = shutil.which("cc")


@dataclass(frozen=True, kw_only=True)
class FakeGpu:
    """The values that the library reports for a GPU. Codes are NVML's; 3 is "not supported"."""

    error: int = 0
    ecc_code: int = 0
    ecc: int = 0
    rows_code: int = 0
    pending: int = 0
    failed: int = 0
    retired_code: int = 3
    retired: int = 0
    throttle_code: int = 0
    throttle: int = 1  # idle
    bus: str = "00000000:00:1E.0"
    name: str = "NVIDIA A10G"

    @property
    def line(self) -> str:
        """The GPU's values in the format that fake_nvml.c reads."""
        return " ".join(map(str, vars(self).values()))


def build(folder: Path) -> Path:
    """Builds the library in a folder; returns the folder."""
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
    return folder


def fake_environment(library: Path, gpus: Sequence[FakeGpu], *, init: int = 0) -> Mapping[str, str]:
    """The variables that make a program load the library. init: the result of nvmlInitWithFlags; -1: it hangs."""
    told = library / "gpus.txt"
    told.write_text("\n".join([str(init), *(gpu.line for gpu in gpus), ""]))
    return {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(told)}


def look(environment: Mapping[str, str], *, timeout_s: float = 10.0) -> tuple[tuple[Gpu, ...] | None, str | None]:
    """(GPUs, driver error), as node/setup/health.py reads them in a process of its own."""
    program = (
        "import os; from msgspec import json; from node.setup import health;"
        f"print(json.encode(health.look_at_gpus({timeout_s})).decode(), flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        timeout=60,
    )
    return decode(done.stdout, tuple[tuple[Gpu, ...] | None, str | None])
