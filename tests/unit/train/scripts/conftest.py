"""Fixtures of the tests of checkpoints."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from training_scripts import script_modules


@pytest.fixture(scope="module")
def checkpoints() -> Iterator[ModuleType]:
    with script_modules("common.checkpoints") as (module,):
        yield module
