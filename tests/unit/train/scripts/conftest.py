"""Modules of the training scripts, as fixtures."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from training_scripts import script_modules


def module_of(name: str) -> Any:
    @pytest.fixture(scope="module")
    def module() -> Iterator[ModuleType]:
        with script_modules(f"common.{name}") as (found,):
            yield found

    return module


NAMES = ("checkpoints", "options", "schedule", "script", "network_names")
checkpoints, options, schedule, script, network_names = map(module_of, NAMES)
