"""Modules of the training scripts, imported as on a node, where the scripts' folder is on the path."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

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


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as trial:
        port: int = trial.getsockname()[1]
        return port
