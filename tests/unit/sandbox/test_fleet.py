"""The hosts of all instances, without any host."""

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ec2_sandbox.hosts.fleet import GONE, Fleet


def test_files_that_are_being_removed_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon of an owner that has ended removes the rest, which fails at files that go away meanwhile."""
    (tmp_path / f"i-1{GONE}").mkdir()
    remove = shutil.rmtree

    def remove_slowly(path: Path) -> None:
        assert threading.current_thread().name == "sweeper"
        time.sleep(0.3)
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", remove_slowly)
    made: Any = object.__new__(Fleet)
    made.__dict__ |= {"_paths": SimpleNamespace(hosts_dir=tmp_path), "_pool": ThreadPoolExecutor(1), "_hosts": {}}
    made.__dict__ |= {"_sweeper": None, "_copies": SimpleNamespace(remove_deleted=lambda _: None)}
    made.enforce = lambda _: None
    made.reconcile(())
    made.end_all()
    assert not list(tmp_path.iterdir())
