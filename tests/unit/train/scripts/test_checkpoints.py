"""Checkpoints of the training scripts: only complete ones are found."""

import itertools
import json
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

SAVING_CODE = ("checkpoints.py", Path(__file__).name)
KINDS = ("params", "states")


def open_checkpoints(
    module: ModuleType, prefix: str, *, keep: int | None = None, model: str = "MXNet, mlp", **wanted: Any
) -> Any:
    """The Checkpoints of a training. wanted: of its options resume, load_epoch and only_job."""
    options = {"resume": True, "load_epoch": None, "only_job": None, **wanted}
    chosen = Namespace(model_prefix=prefix, keep_checkpoints=keep, **options)
    return module.Checkpoints(chosen, model, "sgd")


def content(kind: str, run: str) -> bytes:
    return f"{kind} of {run}\n".encode() * 3000


def save(opened: Any, epoch: int, batch: int = 0, run: str = "first") -> str:
    """Saves a checkpoint in two writes per file, between which a process may be killed."""

    def writer(kind: str) -> Callable[[str], None]:
        def write(path: str) -> None:
            data = content(kind, f"{run} {epoch} {batch}")
            with open(path, "wb", buffering=0) as file:
                file.write(data[: len(data) // 2])
                file.write(data[len(data) // 2 :])

        return write

    name: str = opened.save(epoch, batch, 100, {kind: writer(kind) for kind in KINDS}, "{}")
    return name


def find(opened: Any, *runs: str) -> tuple[int, int, str] | None:
    """The epoch, batch and run of the checkpoint that is found; every byte belongs to it."""
    found = opened.find()
    if found is None:
        return None
    data = {kind: Path(path).read_bytes() for kind, path in found.paths.items()}
    [run] = [
        run for run in runs or ("first",) if data["params"] == content("params", f"{run} {found.epoch} {found.batch}")
    ]
    assert data == {kind: content(kind, f"{run} {found.epoch} {found.batch}") for kind in KINDS}
    return found.epoch, found.batch, run


def kill_after(lines: int) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that kills this process with SIGKILL after this many lines of the code that saves."""
    left = lines

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if Path(frame.f_code.co_filename).name not in SAVING_CODE:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def killed_while(work: Callable[[], None], lines: int) -> bool:
    """Does the work in a child process that is killed after this many lines; returns False if it ended before."""
    child = os.fork()
    if child == 0:
        sys.settrace(kill_after(lines))
        try:
            work()
        finally:
            sys.settrace(None)
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_the_newest_is_found(checkpoints: ModuleType, tmp_path: Path) -> None:
    """The newest is the one that was written last, also where a training has begun again."""
    prefix = str(tmp_path / "models" / "net")
    opened = open_checkpoints(checkpoints, prefix)
    assert find(opened) is None
    for place in ((1, 0), (1, 3), (1, 6), (1, 9), (2, 0)):
        save(opened, *place)
        assert find(open_checkpoints(checkpoints, prefix)) == (*place, "first")
    save(open_checkpoints(checkpoints, prefix + "-other"), 7)
    resumed = open_checkpoints(checkpoints, prefix)
    assert find(resumed) == (2, 0, "first")
    save(resumed, 3, 0, "second")
    again = open_checkpoints(checkpoints, prefix, resume=False)
    assert find(again) is None
    save(again, 1, 0, "again")
    assert find(open_checkpoints(checkpoints, prefix), "again") == (1, 0, "again")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("net-0002.params", lambda data: data[:-1]),
        ("net-0002.params", lambda data: data.replace(b"2", b"3", 1)),
        ("net-0002.states", lambda _: None),
    ],
)
def test_damaged_ones_do_not_count(
    checkpoints: ModuleType, tmp_path: Path, name: str, change: Callable[[bytes], bytes | None]
) -> None:
    opened = open_checkpoints(checkpoints, str(tmp_path / "net"))
    for epoch in (1, 2):
        save(opened, epoch)
    data = change((tmp_path / name).read_bytes())
    (tmp_path / name).unlink()
    if data is not None:
        (tmp_path / name).write_bytes(data)
    assert find(open_checkpoints(checkpoints, str(tmp_path / "net"))) == (1, 0, "first")


def test_killed_at_any_line(checkpoints: ModuleType, tmp_path: Path) -> None:
    """Each process writes epoch 2 again and removes epoch 1, and then writes over the older of two batches."""
    seen = set()
    for lines in itertools.count(step=46):
        prefix = str(tmp_path / f"at-{lines}" / "net")
        opened = open_checkpoints(checkpoints, prefix)
        for place in ((1, 0), (1, 10), (1, 20), (2, 0)):
            save(opened, *place)

        def work(prefix: str = prefix) -> None:
            opened = open_checkpoints(checkpoints, prefix, keep=1)
            opened.find()
            save(opened, 2, 0, "second")
            save(opened, 2, 10, "second")

        killed = killed_while(work, lines)
        seen.add(find(open_checkpoints(checkpoints, prefix), "first", "second"))
        if not killed:
            break
    # While epoch 2 is overwritten, the one before it is the newest.
    assert seen == {(2, 0, "first"), (1, 20, "first"), (2, 0, "second"), (2, 10, "second")}


def test_old_epochs_are_removed(checkpoints: ModuleType, tmp_path: Path) -> None:
    """Those within an epoch do not count."""
    opened = open_checkpoints(checkpoints, str(tmp_path / "net"), keep=2)
    for place in ((1, 0), (1, 5), (2, 0), (2, 5), (3, 0)):
        save(opened, *place)
    stems = {path.name.partition(".")[0] for path in tmp_path.iterdir()}
    assert stems == {"net-0002", "net-0003", "net-batch-0", "net-batch-1", "net-checkpoints", "net-symbol"}


def test_old_epochs_are_emptied_in_s3(checkpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in $CLUSTER_OUTPUT_DIR is copied to S3, where a job may not delete."""
    monkeypatch.setenv("CLUSTER_OUTPUT_DIR", str(tmp_path))
    prefix = str(tmp_path / "s3" / "models" / "net")
    opened = open_checkpoints(checkpoints, prefix, keep=1)
    for epoch in (1, 2):
        save(opened, epoch)
    empty = {path.name for path in Path(prefix).parent.iterdir() if not path.stat().st_size}
    assert empty == {"net-0001.params", "net-0001.states"}
    assert find(open_checkpoints(checkpoints, prefix)) == (2, 0, "first")


def test_an_epoch_of_choice(checkpoints: ModuleType, tmp_path: Path) -> None:
    """Also one that another program has saved."""
    prefix = str(tmp_path / "net")
    opened = open_checkpoints(checkpoints, prefix)
    for place in ((1, 0), (2, 0), (2, 5)):
        save(opened, *place)
    (tmp_path / "net-0004.params").write_bytes(b"weights")
    assert find(open_checkpoints(checkpoints, prefix, resume=False, load_epoch=2)) == (2, 0, "first")
    found = open_checkpoints(checkpoints, prefix, resume=False, load_epoch=4).find()
    assert (found.epoch, found.batch, set(found.paths)) == (4, 0, {"params"})
    with pytest.raises(checkpoints.ScriptError, match=r"no saved model .*net-0005.params"):
        open_checkpoints(checkpoints, prefix, resume=False, load_epoch=5).find()


def test_only_a_jobs_own(checkpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later attempt does not continue from another job, but, until it has saved, from --load-epoch."""
    prefix = str(tmp_path / "net")
    for epoch, job in ((1, "job-1"), (2, "job-2")):
        monkeypatch.setenv("CLUSTER_JOB_ID", job)
        opened = open_checkpoints(checkpoints, prefix)
        opened.find()
        save(opened, epoch)
    assert find(open_checkpoints(checkpoints, prefix, only_job="job-1")) == (1, 0, "first")
    assert find(open_checkpoints(checkpoints, prefix, only_job="job-3")) is None
    assert find(open_checkpoints(checkpoints, prefix, only_job="job-3", load_epoch=1)) == (1, 0, "first")


def test_another_network_is_refused(checkpoints: ModuleType, tmp_path: Path) -> None:
    save(open_checkpoints(checkpoints, str(tmp_path / "net")), 1)
    with pytest.raises(checkpoints.ScriptError, match=r"net-0001.params is a model of MXNet, mlp, not of PyTorch"):
        open_checkpoints(checkpoints, str(tmp_path / "net"), model="PyTorch").find()


def test_states_of_another_optimizer_are_not_used(checkpoints: ModuleType, tmp_path: Path) -> None:
    save(open_checkpoints(checkpoints, str(tmp_path / "net")), 1)
    path = tmp_path / "net-checkpoints.json"
    path.write_text(json.dumps([entry | {"optimizer": "adam"} for entry in json.loads(path.read_text())]))
    assert set(open_checkpoints(checkpoints, str(tmp_path / "net")).find().paths) == {"params"}
