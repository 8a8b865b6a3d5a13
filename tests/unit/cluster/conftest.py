"""Fixtures for the tests of the commands."""

from pathlib import Path

import pytest

from cluster.app import App
from provision_world import World


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(config_path=tmp_path / "cluster.toml")


@pytest.fixture
def aws_app(app: App, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    """An App without cluster.toml, whose AWS is the test's world."""
    monkeypatch.setattr(App, "clients", world.clients)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    return app
