"""An interrupted training continues at its saved batch."""

import json
import os
import random
import re
import signal
import struct
import subprocess
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from project import REPOSITORY
from real_mxnet import real_mxnet
from real_torch import real_torch
from training_scripts import SCRIPTS, find_port
from waits import until

OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "CLUSTER_", "TORCHELASTIC", "GLOO_", "DMLC_", "MXNET_")
EPOCHS = 6  # so that a training is not over before a busy machine has seen it begin
# Slower than the progress file, which is written twice a second.
OPTIONS = (
    "--network", "lenet", "--batch-size", "16", "--lr", "0.01", "--num-epochs", str(EPOCHS), "--lr-step-epochs", "1",
    "--disp-batches", "5", "--resume",
)  # fmt: skip


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


def find_command(framework: str) -> tuple[Sequence[str | Path], Path]:
    """The beginning of a command, and a folder for PYTHONPATH, as on a node."""
    if framework == "torch":
        return [real_torch(), SCRIPTS / "train_mnist_torch.py"], REPOSITORY
    # MXNet's environment has no packages for S3, and this project's site module fixes how workers end.
    start = f"import _cluster_compat, runpy, sys; sys.argv = sys.argv[1:]; sys.path.insert(0, {str(SCRIPTS)!r}); "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    return [real_mxnet(), "-W", "ignore", "-c", start, SCRIPTS / "train_mnist.py"], REPOSITORY / "node/setup/startup"


@contextmanager
def training(framework: str, ranks: int, folder: Path) -> "Iterator[list[subprocess.Popen[str]]]":
    """Starts the processes of a training; the end of the block kills them."""
    command, path = find_command(framework)
    words = [*command, "--data-dir", folder / "digits", "--model-prefix", folder / "net", *OPTIONS]
    env = {key: value for key, value in os.environ.items() if not key.startswith(OTHERS)}
    env |= {"OMP_NUM_THREADS": "1", "CLUSTER_NOTICE_FILE": str(folder / "notice"), "PYTHONPATH": str(path)}
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)] if ranks > 1 else [{}]
    if ranks > 1:
        env |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port())}
    processes = [
        subprocess.Popen(words, env=env | place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for place in places
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def write_digits(folder: Path, **counts: int) -> None:
    """Writes MNIST's files, with images that are easy to tell apart."""
    draw = random.Random(0)
    patterns = [draw.randbytes(28 * 28) for _ in range(10)]
    folder.mkdir()
    for name, count in counts.items():
        labels = bytes(number % 10 for number in range(count))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, count) + labels)
        images = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + b"".join(patterns[label] for label in labels)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(images)


def read(path: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads(path.read_text()) if path.exists() else {"epoch": 0, "batch": 0}
    return found


@pytest.mark.parametrize(
    ("framework", "ranks"), [("mxnet", 1), pytest.param("torch", 2, marks=pytest.mark.slow)], ids=["mxnet", "torch"]
)
def test_one_batch_is_lost_at_most(tmp_path: Path, framework: str, ranks: int) -> None:
    """After a notice. What remains is trained, and reported as it is."""
    write_digits(tmp_path / "digits", train=640, t10k=40)
    saved, progress = tmp_path / "notice.saved", tmp_path / "notice.progress"
    with training(framework, ranks, tmp_path) as processes:
        until(lambda: read(progress)["batch"] > 5 or processes[0].poll() is not None)
        (tmp_path / "notice").touch()
        until(lambda: saved.exists() or processes[0].poll() is not None)
        assert processes[0].poll() is None, processes[0].communicate()[0]
    place, last = read(saved), read(progress)
    assert place["epoch"] == last["epoch"]
    assert 0 <= last["batch"] - place["batch"] <= 1
    (tmp_path / "notice").unlink()
    with training(framework, ranks, tmp_path) as processes:
        outputs = [process.communicate()[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * ranks, outputs
    for text in outputs:
        assert f"Resumed from epoch {place['epoch']} batch {place['batch']}\n" in text
        assert "from scratch" not in text
        shown = re.findall(r"Epoch\[(\d)\] Batch ?\[(?:\d+-)?(\d+)\]", text)
        assert all((int(epoch), int(batch)) > (place["epoch"], place["batch"]) for epoch, batch in shown)
        assert f"Epoch[{EPOCHS - 1}] Validation-accuracy=1.0" in text
    assert (tmp_path / f"net-000{EPOCHS}.params").exists()
