"""Fixtures for the tests of the commands."""

from pathlib import Path

import pytest

from cluster.app import App


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(config_path=tmp_path / "cluster.toml")
