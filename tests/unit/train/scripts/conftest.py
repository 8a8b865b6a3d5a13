"""Fixtures of the tests of checkpoints."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from s3_server import S3Server
from training_scripts import script_modules, serve_models


@pytest.fixture(scope="module")
def checkpoints() -> Iterator[ModuleType]:
    with script_modules("common.checkpoints") as (module,):
        yield module


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve_models() as made:
        yield made
