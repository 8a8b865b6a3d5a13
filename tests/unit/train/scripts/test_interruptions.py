"""An interrupted training continues exactly: its final model is that of an uninterrupted one."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from interrupted_trainings import Training, count, final_model, mxnet_training, torch_training, wait_until
from mxnet_cluster import interruption
from node.agent import notice as node_notice
from real_mxnet import real_mxnet
from real_torch import real_torch
from training_scripts import script_modules, write_digits

OPTIONS = ("--num-epochs", "3", "--lr-step-epochs", "1", "--disp-batches", "5", "--resume")


@pytest.fixture
def notice(tmp_path: Path) -> Iterator[ModuleType]:
    before = signal.getsignal(signal.SIGUSR1)
    with script_modules("common.notice") as (module,):
        yield module
    signal.signal(signal.SIGUSR1, before)


def make_notice(module: ModuleType, folder: Path) -> tuple[Any, Path]:
    path = folder / "notice" / "attempt-1"
    path.parent.mkdir(exist_ok=True)
    return module.Notice({"CLUSTER_NOTICE_FILE": str(path)}), path


def test_a_notice_is_answered_once(notice: ModuleType, tmp_path: Path) -> None:
    asked, path = make_notice(notice, tmp_path)
    assert not asked.is_given()
    path.touch()
    assert asked.is_given()
    asked.answer("m", 0, 3)
    assert not asked.is_given()
    asked.wait_for_end(0.01)  # returns, because the process is not ended
    assert not asked.is_given()
    path.unlink()
    asked.wait_for_end(60)  # returns, because the notice is withdrawn
    path.touch()
    assert asked.is_given()


def test_the_supervisor_the_scripts_and_users_programs_mean_the_same_files(notice: ModuleType) -> None:
    """Each of the three runs without the code of the others."""
    for name in ("VARIABLE", "SAVED", "PROGRESS"):
        assert getattr(notice, name) == getattr(node_notice, name) == getattr(interruption, name)


def test_a_signal_is_a_notice_without_a_file(notice: ModuleType) -> None:
    asked = notice.Notice({})
    asked.listen()
    assert not asked.is_given()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert asked.is_given()
    asked.answer("m", 0, 3)
    asked.wait_for_end()
    assert not asked.is_given()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert asked.is_given()


def test_when_checkpoints_are_saved(notice: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[tuple[int, int]] = []
    asked = notice.Notice({})
    asked.listen()

    def save(epoch: int, batch: int) -> str:
        saved.append((epoch, batch))
        return "m"

    checkpointer = notice.Checkpointer(asked, save, 3, in_step=True)
    for batch in range(1, 10):
        checkpointer.after_batch(2, batch)
        if batch == 4:
            os.kill(os.getpid(), signal.SIGUSR1)
    assert saved == [(2, 3), (2, 5), (2, 6), (2, 9)]


def test_a_checkpoint_that_cannot_be_saved_does_not_end_the_training(
    notice: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, path = make_notice(notice, tmp_path)
    path.touch()
    tries: list[int] = []

    def save(epoch: int, batch: int) -> str:
        tries.append(batch)
        raise notice.ScriptError("No space left on device")

    now = 100.0
    monkeypatch.setattr(notice.time, "monotonic", lambda: now)
    checkpointer = notice.Checkpointer(asked, save, 0, in_step=True)
    for batch in (1, 2):
        checkpointer.after_batch(0, batch)
    now = 106.0
    checkpointer.after_batch(0, 3)
    assert tries == [1, 3]  # not at every batch
    assert not Path(f"{path}.saved").exists()
    every = notice.Checkpointer(notice.Notice({}), save, 5, in_step=True)
    with pytest.raises(notice.ScriptError):
        every.after_batch(0, 5)


def test_without_space_for_progress_training_continues(notice: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    asked = notice.Notice({"CLUSTER_NOTICE_FILE": str(tmp_path / "file" / "attempt-1")})
    for batch in (1, 2):
        asked.note_progress(0, batch, 30)
    asked.answer("m", 0, 2)


# -- with the real frameworks ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("digits") / "files", train=640, t10k=40)


def training(framework: str, processes: int, digits: Path, folder: Path, *words: str) -> Training:
    given = ("--data-dir", str(digits), "--model-prefix", str(folder / "net"), *OPTIONS, *words)
    if framework == "torch":
        return torch_training(real_torch(), folder, *given, ranks=processes)
    return mxnet_training(real_mxnet(), folder, *given, workers=processes)


@pytest.mark.parametrize(
    ("who", "moments", "words"),
    [
        (("mxnet", 1), (27,), ()),
        (("torch", 1), (27,), ()),
        pytest.param(("mxnet", 1), (1, 19, 20, 21, 38, 55), ("--macrobatch-size", "64"), marks=pytest.mark.slow),
        pytest.param(("mxnet", 1), (30,), ("--optimizer", "adam", "--lr", "0.001"), marks=pytest.mark.slow),
        pytest.param(("mxnet", 1), (30,), ("--optimizer", "nadam", "--lr", "0.001"), marks=pytest.mark.slow),
        pytest.param(("mxnet", 2), (1, 9, 10, 14, 25), (), marks=pytest.mark.slow),
        pytest.param(("torch", 3), (9,), (), marks=pytest.mark.slow),
        pytest.param(("torch", 2), (1, 9, 14, 25), (), marks=pytest.mark.slow),
    ],
)
def test_the_final_model_is_the_same(
    tmp_path: Path, digits: Path, who: tuple[str, int], moments: tuple[int, ...], words: tuple[str, ...]
) -> None:
    for name in ("whole", *map(str, moments)):
        (tmp_path / name).mkdir()
    training(*who, digits, tmp_path / "whole", *words).run()
    whole = final_model(tmp_path / "whole" / "net", 3)
    for number, after in enumerate(moments):
        own = training(*who, digits, tmp_path / str(after), *words)
        saved, last = own.interrupt(after, signalled=number % 2 == 1)
        batches = last["batches"]
        assert 0 <= count(last) - count(saved, batches) <= 1 + ("--macrobatch-size" in words)
        outputs = own.run()
        place = f"Resumed from epoch {saved['epoch']} batch {saved['batch']}"
        first = next(text for name, text in sorted(outputs.items()) if name in {"worker-0", "rank-0"})
        assert place in first
        assert final_model(tmp_path / str(after) / "net", 3) == whole


@pytest.mark.slow
def test_a_later_attempt_continues_from_the_disk_of_any_worker(tmp_path: Path, digits: Path) -> None:
    """Worker 0 may be on another node than before, because the worker that connects first becomes worker 0."""
    (tmp_path / "whole").mkdir()
    training("mxnet", 2, digits, tmp_path / "whole").run()
    words = ("--data-dir", str(digits), "--model-prefix", "auto", *OPTIONS[: OPTIONS.index("--resume")])
    shared = mxnet_training(real_mxnet(), tmp_path, *words, workers=2)

    def environments() -> dict[str, dict[str, str]]:
        return {
            name: {**given, "CLUSTER_OUTPUT_DIR": str(tmp_path / name), "CLUSTER_JOB_ID": "j"}
            for name, given in shared.environments().items()
        }

    own = replace(shared, environments=environments)
    for worker in ("worker-0", "worker-1"):
        (tmp_path / worker).mkdir()
    saved, _ = own.interrupt(14)
    (holder,) = {path.parent for path in tmp_path.glob("worker-*/model-*.json")}
    for node in (holder, tmp_path / "worker-0", tmp_path / "worker-1"):
        if node != holder:  # swap the nodes' disks: the next attempt finds the checkpoint on the other node
            shutil.move(holder, tmp_path / "moved")
            shutil.move(node, holder)
            shutil.move(tmp_path / "moved", node)
            break
    with own.running(CLUSTER_RESUME="1", CLUSTER_ATTEMPT="2") as processes:
        outputs = own.finished(processes)
    place = f"Resumed from epoch {saved['epoch']} batch {saved['batch']}"
    for worker in ("worker-0", "worker-1"):
        assert place in outputs[worker], outputs
        assert "all continue with that of worker" in outputs[worker]
    (final,) = tmp_path.glob("worker-*/model-0003.params")
    assert final_model(final.parent / "model", 3) == final_model(tmp_path / "whole" / "net", 3)
    assert not [*tmp_path.glob("worker-*/checkpoint-*")]


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["mxnet", "torch"])
def test_without_a_notice_at_most_the_interval_is_lost(tmp_path: Path, digits: Path, framework: str) -> None:
    """The training is killed three times, at any moment, even during a save."""
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    training(framework, 1, digits, tmp_path / "whole").run()
    own = training(framework, 1, digits, tmp_path / "killed", "--checkpoint-batches", "4")
    for after in (6, 23, 41):
        last = own.kill(after)
        outputs = own.run("--num-epochs", "3") if after == 41 else own.first_lines()
        place = own.resumed(outputs)
        assert 0 <= count(last) - count(place, last["batches"]) <= 4
    names = {path.name for path in (tmp_path / "killed").glob("net-batch-*.json")}
    assert names == {"net-batch-0.json", "net-batch-1.json"}
    assert final_model(tmp_path / "killed" / "net", 3) == final_model(tmp_path / "whole" / "net", 3)


@pytest.mark.slow
@pytest.mark.sandbox
def test_a_full_disk(tmp_path: Path, digits: Path) -> None:
    """The last checkpoint that had room stays complete, and the next run continues from it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "whole").mkdir()
    training("mxnet", 1, digits, tmp_path / "whole").run()
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk), check=True)
    try:
        own = training("mxnet", 1, digits, disk, "--checkpoint-batches", "4")
        with own.running() as processes:
            wait_until((disk / "net-batch-0.json").exists, 0.001)
            fill(disk / "filler")
            output = processes["worker-0"].communicate()[0]
            assert processes["worker-0"].returncode == 1
        assert "No space left on device" in output or "is the disk full?" in output
        (disk / "filler").unlink()
        assert "Resumed from epoch" in own.run()["worker-0"]
        assert final_model(disk / "net", 3) == final_model(tmp_path / "whole" / "net", 3)
    finally:
        subprocess.run(("umount", disk), check=True)


def fill(path: Path) -> None:
    """Fills all remaining space with this file."""
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
