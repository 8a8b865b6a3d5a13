"""An interrupted training continues at its saved batch."""

import contextlib
import os
import re
import signal
import subprocess
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from interrupted_trainings import Training, count, mxnet_training, torch_training, wait_until
from real_mxnet import real_mxnet
from real_torch import real_torch
from training_scripts import write_digits

# Slower than the progress file, which is written twice a second.
SLOW = ("--network", "lenet", "--batch-size", "16", "--lr", "0.01")
OPTIONS = (*SLOW, "--num-epochs", "6", "--lr-step-epochs", "1", "--disp-batches", "5", "--resume")


@pytest.fixture
def _handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("_handler")
def test_when_checkpoints_are_saved(checkpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every three batches and two epochs, at the end, and between two updates after a notice."""
    monkeypatch.setenv("CLUSTER_NOTICE_FILE", str(tmp_path / "attempt-1"))
    monkeypatch.setattr("mxnet_cluster.interruption.WAIT_S", 0.0)
    saved: list[tuple[int, int]] = []

    class Recorder:
        def save(self, epoch: int, batch: int, _: int) -> str:
            saved.append((epoch, batch))
            return "m"

    options = Namespace(checkpoint_batches=6, save_period=2, num_epochs=3)
    saver = checkpoints.Saver(options, Recorder(), dict, batches=10, steps=2)
    for epoch in range(3):
        for batch in range(1, 11):
            if (epoch, batch) == (1, 3):
                os.kill(os.getpid(), signal.SIGUSR1)
            saver.after_batch(epoch, batch)
        saver.after_epoch(epoch + 1)
        if epoch == 0:
            os.kill(os.getpid(), signal.SIGUSR1)
        saver.between_epochs(epoch + 1)  # in the validation
    assert saved == [(0, 6), (1, 0), (1, 4), (1, 6), (2, 0), (2, 6), (3, 0)]


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
        pytest.param(("mxnet", 1), (1, 20, 21, 55), ("--macrobatch-size", "64"), marks=pytest.mark.slow),
        pytest.param(("mxnet", 1), (30,), ("--optimizer", "adam", "--lr", "0.001"), marks=pytest.mark.slow),
        pytest.param(("mxnet", 2), (1, 10, 14, 25), (), marks=pytest.mark.slow),
        pytest.param(("torch", 2), (1, 9, 25), (), marks=pytest.mark.slow),
    ],
)
def test_one_batch_is_lost_at_most(
    tmp_path: Path, digits: Path, who: tuple[str, int], moments: tuple[int, ...], words: tuple[str, ...]
) -> None:
    """After a notice. With several steps per update, one update. What remains is trained, and reported as it is."""
    for number, after in enumerate(moments):
        folder = tmp_path / str(after)
        folder.mkdir()
        own = training(*who, digits, folder, *words)
        saved, last = own.interrupt(after, signalled=number % 2 == 1)
        assert 0 <= count(last) - count(saved, last["batches"]) <= (4 if words[:1] == ("--macrobatch-size",) else 1)
        outputs = own.run()
        for name, text in outputs.items():
            if name.startswith(("worker", "rank")):
                assert f"Resumed from epoch {saved['epoch']} batch {saved['batch']}\n" in text
                assert "from scratch" not in text
                shown = [
                    int(epoch) * last["batches"] + int(batch)
                    for epoch, batch in re.findall(r"Epoch\[(\d)\] Batch ?\[(?:\d+-)?(\d+)\]", text)
                ]
                assert all(number > count(saved, last["batches"]) for number in shown)
                assert "Epoch[5] Validation-accuracy=1.0" in text
        assert (folder / "net-0006.params").exists()


@pytest.mark.slow
def test_workers_that_find_different_checkpoints(tmp_path: Path, digits: Path) -> None:
    """A later attempt of a job begins anew; --resume is an error."""
    words = ("--data-dir", str(digits), "--model-prefix", "auto", "--num-epochs", "1")
    shared = mxnet_training(real_mxnet(), tmp_path, *words, workers=2)

    def environments() -> dict[str, dict[str, str]]:
        return {
            name: {**given, "CLUSTER_OUTPUT_DIR": str(tmp_path / name), "CLUSTER_JOB_ID": "j"}
            for name, given in shared.environments().items()
        }

    own = replace(shared, environments=environments)
    own.run()
    with own.running("--num-epochs", "2", CLUSTER_RESUME="1") as processes:
        outputs = own.finished(processes)
    assert all("training begins with epoch 0" in outputs[worker] for worker in ("worker-0", "worker-1"))
    with own.running("--num-epochs", "3", "--resume") as processes:
        said = [processes[worker].communicate()[0] for worker in ("worker-0", "worker-1")]
    assert all("--model-prefix must be a place that all of them share" in each for each in said)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["mxnet", "torch"])
def test_without_a_notice_at_most_the_interval_is_lost(tmp_path: Path, digits: Path, framework: str) -> None:
    """The training is killed three times, at any moment, even during a save."""
    (tmp_path / "killed").mkdir()
    own = training(framework, 1, digits, tmp_path / "killed", "--checkpoint-batches", "4")
    for after in (6, 73, 141):
        last = own.kill(after)
        outputs = own.run() if after == 141 else own.first_lines()
        place = own.resumed(outputs)
        assert count(last) - count(place, last["batches"]) <= 4
    names = {path.name for path in (tmp_path / "killed").glob("net-batch-*.params")}
    assert names == {"net-batch-0.params", "net-batch-1.params"}
    assert (tmp_path / "killed" / "net-0006.params").exists()


@pytest.mark.slow
@pytest.mark.sandbox
def test_a_full_disk(tmp_path: Path, digits: Path) -> None:
    """The last checkpoint that had room stays complete, and the next run continues from it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk), check=True)
    try:
        own = training("mxnet", 1, digits, disk, "--checkpoint-batches", "4")
        with own.running() as processes:
            wait_until((disk / "net-checkpoints.json").exists, 0.001)
            fill(disk / "filler")
            output = processes["worker-0"].communicate()[0]
            assert processes["worker-0"].returncode == 1
        assert "No space left on device" in output or "is the disk full?" in output
        (disk / "filler").unlink()
        assert "Resumed from epoch" in own.run()["worker-0"]
        assert (disk / "net-0006.params").exists()
    finally:
        subprocess.run(("umount", disk), check=True)


def fill(path: Path) -> None:
    """Fills all remaining space with this file."""
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
