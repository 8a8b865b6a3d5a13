"""Modules of the training scripts, imported as on a node, where the scripts' folder is on the path."""

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
    """Those that need no MXNet, until the block ends; then nobody finds them any more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield [import_module(name) for name in names]
    for name in [name for name in sys.modules if name.partition(".")[0] in _PACKAGES]:
        del sys.modules[name]
