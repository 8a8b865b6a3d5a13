"""An environment with the real PyTorch, made once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from real_mxnet import make_once

TORCH = "torch==2.13.0"
OTHERS = ("msgspec", "obstore", "pillow")  # this project's code on nodes needs them, and the script for RecordIO files


def real_torch() -> str:
    """The path of a Python that can import PyTorch. Skips the test if pip's indexes have no wheel for CPUs only.

    The wheel for GPUs is 500 MB, and its dependencies are 3 GB.
    """
    return make_once(TORCH.replace("==", "-"), sys.executable, install_torch)


def install_torch(python: Path) -> None:
    """Runs `pip install` for PyTorch and what our code needs. uv would not use the indexes that pip is configured with.

    Skips the test if pip finds no wheel for CPUs only.
    """
    command = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet")
    dry = (*command, "--dry-run", "--no-deps", "--report", "-", TORCH)
    found = subprocess.run(dry, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"pip finds no {TORCH}: {found.stderr.strip().splitlines()[-1]}")
    version = json.loads(found.stdout)["install"][0]["metadata"]["version"]
    if not version.endswith("+cpu"):
        pytest.skip(f"pip's indexes offer torch {version}, which is not for CPUs only")
    subprocess.run((*command, TORCH, *OTHERS), capture_output=True, check=True)
