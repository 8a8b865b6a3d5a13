"""`cluster notebook`: the job that it submits, whatever [train] says."""

from typing import Any, cast

import pytest

from cluster.app import App
from cluster.commands import notebook

TRAIN = """
name = "demo"
[train]
nodes = "2.."
processes = 2
stall_timeout = "10m"
on_stall = "requeue"
sync_dst_dir = "/data/job"
"""


def test_settings_of_train_do_not_count(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above all, the notebook does not write its files into the folder of the job that runs beside it."""
    app.config_path.write_text(TRAIN)
    monkeypatch.setattr(notebook, "submit", lambda *_args, **_options: None)
    notebook.start(app, cast("Any", None), "node-1")
    train = app.config.train
    assert (train.hosts, train.workers, train.stall_timeout, train.sync_dst_dir) == (("node-1",), 1, "none", "")
