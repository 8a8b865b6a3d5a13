"""Trainings with the shipped scripts on this machine, interrupted after some batches as by the supervisor."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from project import REPOSITORY
from training_scripts import SCRIPTS

OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "CLUSTER_", "TORCHELASTIC", "GLOO_", "DMLC_", "MXNET_")
TIMEOUT_S = 240
RESUMED = re.compile(r"Resumed from epoch (\d+) batch (\d+)")


def find_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


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
            wait_until(lambda: any_ended(processes) or count(read(progress)) >= after, 0.001)
            assert not any_ended(processes), [
                process.communicate()[0] for process in processes.values() if process.poll()
            ]
            if not signalled:
                self.notice.touch()
            else:
                for process in processes.values():
                    if catches_notices(process.pid):
                        process.send_signal(signal.SIGUSR1)
            wait_until(lambda: any_ended(processes) or saved.exists(), 0.001)
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
