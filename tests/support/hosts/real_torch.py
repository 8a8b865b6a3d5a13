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
    return make_once(TORCH.replace("==", "-"), sys.executable, _install)


def _install(python: Path) -> None:
    version = _find_offered(python)
    if not version.endswith("+cpu"):
        pytest.skip(f"pip's indexes offer torch {version}, which is not for CPUs only")
    _pip(python, "--quiet", TORCH, *OTHERS).check_returncode()


def _find_offered(python: Path) -> str:
    """The version of the wheel that pip would install. Skips the test if there is none."""
    done = _pip(python, "--quiet", "--dry-run", "--no-deps", "--report", "-", TORCH)
    if done.returncode:
        pytest.skip(f"pip finds no {TORCH}: {done.stderr.strip().splitlines()[-1]}")
    version: str = json.loads(done.stdout)["install"][0]["metadata"]["version"]
    return version


def _pip(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs `pip install`. uv would not use the indexes that pip is configured with."""
    return subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
