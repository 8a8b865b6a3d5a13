"""`cluster results`: a job's files on this machine."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from bootstrap.transfer.sync import find_below
from cluster.app import App
from cluster.nodes import results
from cluster.nodes.results import JobResults, copy_job, find_copies
from job_records import make_record


def test_results_that_arrive_are_sent_with_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with one that starts meanwhile nor after an interrupt."""
    monkeypatch.chdir(tmp_path)
    found = JobResults(s3_url="s3://bucket/job/", s3_names=("model.params",))
    sources = SimpleNamespace(find_job=lambda _: make_record(1), nodes=None)

    def copy(_app: App, _record: object, _found: object, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "model.params").write_text("a gigabyte")
        raise KeyboardInterrupt

    monkeypatch.setattr(results, "open_jobs", lambda _: nullcontext(sources))
    monkeypatch.setattr(results, "open_results", lambda *_: nullcontext(found))
    monkeypatch.setattr(results, "copy_results", copy)
    with pytest.raises(KeyboardInterrupt):
        copy_job(App(config_path=tmp_path / "cluster.toml"), None)
    assert find_below(["."], named=[], project_dir=tmp_path, exclude=()).files == {}


def test_what_nodes_have_does_not_come_from_s3_too() -> None:
    names = {"node-0": ["output/a/pred 0.txt", "model.params"], "node-1": ["output/b"]}
    assert find_copies(names) == {"output/node-0/a/pred 0.txt", "output/node-1/b"}
