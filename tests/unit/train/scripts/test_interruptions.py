"""An interrupted training continues at its saved batch."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from project import REPOSITORY
from real_mxnet import real_mxnet
from real_torch import real_torch
from training_scripts import SCRIPTS, find_port, write_digits

OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "CLUSTER_", "TORCHELASTIC", "GLOO_", "DMLC_", "MXNET_")
TIMEOUT_S = 240
RESUMED = re.compile(r"Resumed from epoch (\d+) batch (\d+)")


@dataclass(frozen=True)
class Training:
    """A command, and the environments of its processes by name."""

    command: tuple[str, ...]
    environments: Callable[[], Mapping[str, dict[str, str]]]
    folder: Path

    def run(self, *words: str) -> dict[str, str]:
        """Runs the training; returns the output of each process. All must exit with 0."""
        with self.running(*words) as processes:
            return self.finished(processes)

    def finished(self, processes: Mapping[str, "subprocess.Popen[str]"]) -> dict[str, str]:
        outputs = {name: process.communicate(timeout=TIMEOUT_S)[0] for name, process in processes.items()}
        codes = {name: process.returncode for name, process in processes.items()}
        assert set(codes.values()) == {0}, (codes, outputs)
        return outputs

    @contextmanager
    def running(self, *words: str, **environment: str) -> Iterator[dict[str, "subprocess.Popen[str]"]]:
        """Starts the processes; the end of the block kills them."""
        own = {key: value for key, value in os.environ.items() if not key.startswith(OTHERS)}
        more = {"OMP_NUM_THREADS": "1", "CLUSTER_NOTICE_FILE": str(self.notice), **environment}
        started = {
            name: subprocess.Popen(
                [*self.command, *words], env=own | more | given,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for name, given in self.environments().items()
        }  # fmt: skip
        try:
            yield started
        finally:
            for process in started.values():
                process.kill()
            for process in started.values():
                if process.stdout is not None and not process.stdout.closed:
                    process.communicate()

    @property
    def notice(self) -> Path:
        return self.folder / "notice" / "attempt"

    def interrupt(self, after: int, *words: str, signalled: bool = False) -> tuple[dict[str, int], dict[str, int]]:
        """Notifies a training after this many batches in all, and kills it once its checkpoint is complete.

        Returns the checkpoint's place and the last batch that any process finished.
        """
        saved, progress = self.file(".saved"), self.file(".progress")
        for path in (self.notice, saved, progress):
            path.unlink(missing_ok=True)
        with self.running(*words) as processes:
            wait_until(lambda: any_ended(processes) or count(read(progress)) >= after)
            assert not any_ended(processes), [
                process.communicate()[0] for process in processes.values() if process.poll()
            ]
            if not signalled:
                self.notice.touch()
            else:
                for process in processes.values():
                    if catches_notices(process.pid):
                        process.send_signal(signal.SIGUSR1)
            wait_until(lambda: any_ended(processes) or saved.exists())
            assert saved.exists(), [process.communicate()[0] for process in processes.values() if process.poll()]
        place, last = read(saved), read(progress)
        self.notice.unlink(missing_ok=True)
        return place, last

    def kill(self, after: int, *words: str) -> dict[str, int]:
        """Kills a training after this many batches in all; returns the last batch that was finished."""
        self.file(".progress").unlink(missing_ok=True)
        with self.running(*words) as processes:
            wait_until(lambda: count(read(self.file(".progress"))) >= after or any_ended(processes), 0.001)
            assert not any_ended(processes)
        return read(self.file(".progress"))

    def first_lines(self) -> dict[str, str]:
        """Runs a training until it has found where to continue, then kills it; returns its output."""
        with self.running() as processes:
            lines = {name: [] for name in processes}  # type: dict[str, list[str]]
            for name, process in processes.items():
                assert process.stdout is not None
                while not RESUMED.search("".join(lines[name])):
                    line = process.stdout.readline()
                    assert line, lines
                    lines[name].append(line)
        return {name: "".join(found) for name, found in lines.items()}

    def resumed(self, outputs: Mapping[str, str]) -> dict[str, int]:
        """The epoch and batch from which the first process continued."""
        found = RESUMED.search(next(iter(outputs.values())))
        assert found is not None, outputs
        return {"epoch": int(found[1]), "batch": int(found[2])}

    def file(self, suffix: str) -> Path:
        return Path(f"{self.notice}{suffix}")


def any_ended(processes: "Mapping[str, subprocess.Popen[str]]") -> bool:
    return any(process.poll() is not None for process in processes.values())


def read(path: Path) -> dict[str, int]:
    try:
        found: dict[str, int] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {"epoch": 0, "batch": 0, "batches": 1}
    return found


def count(progress: Mapping[str, int], batches: int = 0) -> int:
    """The number of a training's batches up to here."""
    return progress["epoch"] * (batches or progress["batches"]) + progress["batch"]


def catches_notices(pid: int) -> bool:
    """Whether a process has a handler for SIGUSR1. The signal would end a process without one."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line for line in lines if line.startswith("SigCgt:")).partition(":")[2]
    return bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1)


def wait_until(condition: Callable[[], bool], every_s: float = 0.01) -> None:
    ends_at = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < ends_at, "this did not happen in time"
        time.sleep(every_s)


def mxnet_training(
    python: str, folder: Path, *words: str, script: str = "train_mnist.py", workers: int = 1
) -> Training:
    """A training with MXNet: one worker by itself, or several with dist_sync and as many servers."""
    # As on a node: MXNet's environment has no packages for S3, and this project's site module fixes how workers end.
    start = f"import _cluster_compat, runpy, sys; sys.argv = sys.argv[1:]; sys.path.insert(0, {str(SCRIPTS)!r}); "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    path = {"PYTHONPATH": str(REPOSITORY / "node" / "setup" / "startup")}

    def environments() -> dict[str, dict[str, str]]:
        if workers == 1:
            return {"worker-0": path}
        where = {
            "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(find_port()), "DMLC_NODE_HOST": "127.0.0.1",
            "DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": str(workers), **path,
        }  # fmt: skip
        names = ["scheduler", *(f"{role}-{number}" for role in ("server", "worker") for number in range(workers))]
        return {name: {**where, "DMLC_ROLE": name.partition("-")[0]} for name in names}

    return Training((python, "-W", "ignore", "-c", start, str(SCRIPTS / script), *words), environments, folder)


def torch_training(python: str, folder: Path, *words: str, ranks: int = 1) -> Training:
    """A training with PyTorch."""
    path = {"PYTHONPATH": str(REPOSITORY)}

    def environments() -> dict[str, dict[str, str]]:
        if ranks == 1:
            return {"rank-0": path}
        where = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port()), **path}
        return {f"rank-{rank}": {**where, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)}

    return Training((python, str(SCRIPTS / "train_mnist_torch.py"), *words), environments, folder)


# Slower than the progress file, which is written twice a second.
SLOW = ("--network", "lenet", "--batch-size", "16", "--lr", "0.01")
OPTIONS = (*SLOW, "--num-epochs", "6", "--lr-step-epochs", "1", "--disp-batches", "5", "--resume")
SHORT = ("--num-epochs", "2")


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
        (("mxnet", 1), (27,), SHORT),
        pytest.param(("torch", 1), (27,), SHORT, marks=pytest.mark.slow),
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
    epochs = 2 if words == SHORT else 6
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
                assert f"Epoch[{epochs - 1}] Validation-accuracy=1.0" in text
        assert (folder / f"net-000{epochs}.params").exists()


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
