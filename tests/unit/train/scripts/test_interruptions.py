"""A training that is interrupted and resumed ends with the same model: the real MXNet and PyTorch.

Slow: two workers with servers, and two ranks.
"""

import json
import os
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from project import REPOSITORY
from real_mxnet import real_mxnet
from real_torch import real_torch
from train.node.role.notice import PROGRESS, SAVED, VARIABLE, NoticeFile
from train.node.supervisor.attempts.restarts import count_lost_batches, parse_resumed
from training_scripts import SCRIPTS, opened, script_modules, write_digits

EPOCHS, BATCHES = 3, 60  # of 32 images
OURS = re.compile("DMLC_|CLUSTER_|RANK|WORLD_SIZE|LOCAL_|MASTER_|TORCHELASTIC")


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    return write_digits(tmp_path / "digits", train=BATCHES * 32 + 17, t10k=10)


class Training:
    """The processes of one training. The last one is worker 0, and prints."""

    def __init__(self, python: str, script: str, words: tuple[str, ...], environments: list[dict[str, str]]) -> None:
        clean = {key: value for key, value in os.environ.items() if not OURS.match(key)}
        base = {**clean, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
        self.processes = [
            subprocess.Popen(
                [python, "-W", "ignore", SCRIPTS / script, *words],
                env={**base, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for environment in environments
        ]  # fmt: skip
        self.output = ""

    def read_until(self, pattern: str) -> None:
        """Read worker 0's output up to a line that matches."""
        stream = self.processes[-1].stdout
        assert stream is not None
        for line in stream:
            self.output += line
            if re.search(pattern, line):
                return
        raise AssertionError(f"no {pattern} in\n{self.output}")

    def finish(self) -> None:
        for process in reversed(self.processes):
            output, _ = process.communicate(timeout=120)
            if process is self.processes[-1]:
                self.output += output
            assert process.returncode == 0, self.output + output

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.communicate()


def mxnet_alone(**environment: str) -> list[dict[str, str]]:
    return [environment]


def mxnet_job(**environment: str) -> list[dict[str, str]]:
    where = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(find_port()), "DMLC_NODE_HOST": "127.0.0.1"}
    where |= {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "2", **environment}
    roles = ["scheduler", "server", "server", "worker", "worker"]
    return [{**where, "DMLC_ROLE": role} for role in roles]


def torch_ranks(**environment: str) -> list[dict[str, str]]:
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port()), **environment}
    return [{**where, "RANK": rank, "LOCAL_RANK": rank} for rank in ("1", "0")]


def find_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


def read_digests(prefix: Path) -> dict[str, str]:
    """Of the files of the last checkpoint."""
    manifest = json.loads(prefix.with_name(f"{prefix.name}-{EPOCHS:04}.json").read_text())
    assert "batch" not in manifest
    return {kind: file["sha256"] for kind, file in manifest["files"].items()}


def find_newest(prefix: Path) -> Any:
    with script_modules("common.checkpoints") as (checkpoints,):
        found = checkpoints.find_newest(opened(checkpoints, str(prefix), to_write=False))
    assert found is not None
    return {"epoch": found.epoch, "batch": found.batch}


def interrupt(
    tmp_path: Path, digits: Path, python: str, script: str, where: Callable[..., list[dict[str, str]]], *more: str
) -> None:
    """Interrupt a training by notices and by SIGKILL; each time it goes on, and it ends with the same files."""
    words = ("--data-dir", str(digits), "--num-epochs", str(EPOCHS), "--disp-batches", "1", *more)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    training = Training(python, script, (*words, "--model-prefix", str(whole)), where())
    training.finish()

    position = {"epoch": 0, "batch": 0}
    resumable = (*words, "--model-prefix", str(parts), "--resume", "--checkpoint-batches", "7")
    # A report, and whether a notice comes then, or SIGKILL. The second and the last notice are there from the start.
    reports = [
        ("Epoch.0. Batch .([0-9]+-)?20]", True),
        ("", True),
        ("Epoch.1. Batch .([0-9]+-)?27]", False),
        ("", True),
    ]
    for number, (report, is_notice) in enumerate(reports):
        file = tmp_path / f"notice-{number}"
        if not report:
            file.touch()
        training = Training(python, script, resumable, where(**{VARIABLE: str(file)}))
        try:
            training.read_until(report or "will be interrupted: waiting to continue elsewhere")
            if is_notice and report:
                file.touch()
                training.read_until("will be interrupted: waiting to continue elsewhere")
        finally:
            training.kill()
        assert next(filter(None, map(parse_resumed, training.output.splitlines())), None) == position
        before, position = position, find_newest(parts)
        if is_notice:
            reader = NoticeFile(str(file))
            saved, done = reader.read_new(SAVED), reader.read_new(PROGRESS)
            assert saved == position
            assert json.loads(Path(f"{file}{SAVED}").read_text())["url"].startswith(str(parts))
            assert count_lost_batches(done, saved) == 0
            assert report or position == {"epoch": before["epoch"], "batch": before["batch"] + 1}
        else:
            assert position["epoch"] == 1
            assert position["batch"] % 7 == 0
            assert position["batch"] > 27 - 7
    training = Training(python, script, (*words, "--model-prefix", str(parts), "--resume"), where())
    training.finish()
    assert f"Resumed from epoch {position['epoch']} batch {position['batch']}" in training.output
    assert read_digests(parts) == read_digests(whole)
    assert sorted(path.name for path in tmp_path.glob("parts-*batch*")) == []  # older than the last epoch's


def test_mxnet(tmp_path: Path, digits: Path) -> None:
    interrupt(tmp_path, digits, real_mxnet(), "train_mnist.py", mxnet_alone)


@pytest.mark.slow
def test_two_workers_of_mxnet(tmp_path: Path, digits: Path) -> None:
    interrupt(tmp_path, digits, real_mxnet(), "train_mnist.py", mxnet_job, "--kv-store", "dist_sync")


@pytest.mark.slow
def test_pytorch(tmp_path: Path, digits: Path) -> None:
    interrupt(tmp_path, digits, real_torch(), "train_mnist_torch.py", torch_ranks)
