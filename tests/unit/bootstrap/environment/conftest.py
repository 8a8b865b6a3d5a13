"""Package indexes for tests of the nodes' environment."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from index_server import Index, serve_index


@pytest.fixture
def empty_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A package index over HTTP, without packages; pip's settings name no other."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with serve_index(folder) as served:
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"{served.url}/simple/")
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
            monkeypatch.delenv(name, raising=False)
        yield served
