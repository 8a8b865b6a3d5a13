"""Modules of the training scripts, imported as on a node, where the scripts' folder is on the path."""

import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import train

SCRIPTS = Path(train.__file__).parent / "scripts"
_PACKAGES = ("common", "networks")


@contextmanager
def script_modules(*names: str) -> Iterator[list[ModuleType]]:
    """Imports modules that need neither MXNet nor PyTorch; the end of the block removes them from sys.modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield [import_module(name) for name in names]
    for name in [name for name in sys.modules if name.partition(".")[0] in _PACKAGES]:
        del sys.modules[name]


KINDS = ("params", "states")


def open_checkpoints(
    module: ModuleType, prefix: str, *, keep: int | None = None, model: str = "MXNet, mlp", **wanted: Any
) -> Any:
    """The Checkpoints of a training. wanted: of its options resume, load_epoch and only_job."""
    options = {"resume": True, "load_epoch": None, "only_job": None, **wanted}
    chosen = Namespace(model_prefix=prefix, keep_checkpoints=keep, **options)
    return module.Checkpoints(chosen, model, "sgd")


def content(kind: str, run: str) -> bytes:
    return f"{kind} of {run}\n".encode() * 3000


def save(opened: Any, epoch: int, batch: int = 0, run: str = "first") -> str:
    """Saves a checkpoint in two writes per file, between which a process may be killed."""

    def writer(kind: str) -> Callable[[str], None]:
        def write(path: str) -> None:
            data = content(kind, f"{run} {epoch} {batch}")
            with open(path, "wb", buffering=0) as file:
                file.write(data[: len(data) // 2])
                file.write(data[len(data) // 2 :])

        return write

    name: str = opened.save(epoch, batch, 100, {kind: writer(kind) for kind in KINDS}, "{}")
    return name


def find(opened: Any, *runs: str) -> tuple[int, int, str] | None:
    """The epoch, batch and run of the checkpoint that is found; every byte belongs to it."""
    found = opened.find()
    if found is None:
        return None
    data = {kind: Path(path).read_bytes() for kind, path in found.paths.items()}
    [run] = [
        run for run in runs or ("first",) if data["params"] == content("params", f"{run} {found.epoch} {found.batch}")
    ]
    assert data == {kind: content(kind, f"{run} {found.epoch} {found.batch}") for kind in KINDS}
    return found.epoch, found.batch, run


def find_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port
