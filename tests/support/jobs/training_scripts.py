"""Modules of the training scripts, imported as on a node, where the scripts' folder is on the path."""

import os
import random
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest

import train
from s3_server import REGION, S3Server, serve_s3

SCRIPTS = Path(train.__file__).parent / "scripts"
_PACKAGES = ("common", "ddp", "networks")


@contextmanager
def script_modules(*names: str) -> Iterator[list[ModuleType]]:
    """Imports modules that need neither MXNet nor PyTorch; the end of the block removes them from sys.modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield [import_module(name) for name in names]
    for name in [name for name in sys.modules if name.partition(".")[0] in _PACKAGES]:
        del sys.modules[name]


KINDS = ("params", "states")


@contextmanager
def serve_models() -> Iterator[S3Server]:
    """Serves an S3 with a bucket `models`, in the environment of a job that may use it."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        # A bucket's drafts are removed when their process ends by itself, which a worker of pytest-xdist never does.
        patch.setenv("CLUSTER_OUTPUT_DIR", folder)
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("S3_REGION", REGION)
        with serve_s3() as made:
            patch.setenv("AWS_ENDPOINT_URL", made.url)
            made.put("models", {})
            yield made
            made.reset()


def content(kind: str, epoch: int, run: str) -> bytes:
    return f"{kind} of epoch {epoch}, {run}\n".encode() * 3000


def save(checkpoints: ModuleType, place: Any, epoch: int, run: str = "first") -> None:
    def writer(kind: str) -> Callable[[str], None]:
        def write(path: str) -> None:
            data = content(kind, epoch, run)
            with open(path, "wb", buffering=0) as file:
                file.write(data[: len(data) // 2])
                file.write(data[len(data) // 2 :])

        return write

    checkpoints.save(place, epoch, {kind: writer(kind) for kind in KINDS}, symbol="{}", facts={"run": run})


def check(found: Any) -> tuple[int, str]:
    """Checks every byte of a checkpoint; returns its epoch and run."""
    run = found.manifest["run"]
    for kind in KINDS:
        assert Path(found.paths[kind]).read_bytes() == content(kind, found.epoch, run)
    return found.epoch, run


def opened(checkpoints: ModuleType, prefix: str, *, to_write: bool = True) -> Any:
    return checkpoints.open_place(prefix, to_write=to_write)


def write_idx(path: Path, shape: Sequence[int], content: bytes) -> None:
    path.write_bytes(struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + content)


def write_digits(folder: Path, **counts: int) -> Path:
    """Writes MNIST's files, with images that are easy to tell apart; returns the folder."""
    draw = random.Random(0)
    patterns = [draw.randbytes(28 * 28) for _ in range(10)]
    folder.mkdir()
    for name, count in counts.items():
        labels = bytes(number % 10 for number in range(count))
        write_idx(folder / f"{name}-labels-idx1-ubyte", [count], labels)
        write_idx(folder / f"{name}-images-idx3-ubyte", [count, 28, 28], b"".join(patterns[label] for label in labels))
    return folder
