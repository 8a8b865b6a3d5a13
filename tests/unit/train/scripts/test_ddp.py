"""The PyTorch script: its options and data without PyTorch, and trainings with the real one where there is a wheel."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from node.reports import parse_report
from project import REPOSITORY
from real_torch import real_torch
from training_scripts import SCRIPTS, write_digits

SCRIPT = SCRIPTS / "train_mnist_torch.py"
OPTIONS = (
    "network", "data-dir", "data-train", "data-val", "batch-size", "num-epochs", "mom", "wd", "seed", "lr", "lr-factor",
    "lr-step-epochs", "warmup-epochs", "warmup-strategy", "disp-batches", "model-prefix", "save-period",
    "keep-checkpoints", "resume", "load-epoch", "checkpoint-batches", "dist-backend", "dist-timeout",
)  # fmt: skip
RANK = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
PATTERN = re.compile("RANK|WORLD_SIZE|LOCAL_|MASTER_|CLUSTER_|TORCHELASTIC|GLOO_|NCCL_")


@pytest.fixture(scope="session")
def torch_python() -> str:
    return real_torch()


def own_environment(**more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if PATTERN.match(key) is None}
    return {**clean, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), **more}


def run_script(python: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, SCRIPT, *words], env=own_environment(**environment), capture_output=True, text=True, check=False
    )


def run_ranks(
    python: str, count: int, *words: str, script: Path = SCRIPT, **environment: str
) -> list[tuple[int, str, str]]:
    """Runs the script on all ranks; returns the exit code, output and errors of each."""
    where = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port()), **environment}
    running = [
        subprocess.Popen(
            [python, script, *words], env=own_environment(**where, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    outputs = [process.communicate() for process in running]
    return [(process.returncode, *output) for process, output in zip(running, outputs, strict=True)]


def find_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


# -- without PyTorch ---------------------------------------------------------------------------------------------------


def test_help_needs_no_torch() -> None:
    done = run_script(sys.executable, "--help")
    assert done.returncode == 0
    assert [option for option in OPTIONS if f"--{option} " not in done.stdout.replace("\n", " \n")] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no data: set [data] url"),
        (("--data-dir", "d", "--dist-backend", "mpi"), "invalid choice: 'mpi'"),
        (("--data-dir", "d", "--kv-store", "dist_sync"), "unrecognized arguments"),
    ],
)
def test_invalid_options(words: tuple[str, ...], said: str) -> None:
    done = run_script(sys.executable, *words)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]


# -- with PyTorch ------------------------------------------------------------------------------------------------------


def find_numbers(pattern: str, output: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, output)]


def test_two_ranks_train(torch_python: str, tmp_path: Path) -> None:
    digits, prefix = write_digits(tmp_path / "digits", train=320, t10k=51), tmp_path / "ddp" / "net"
    words = ("--model-prefix", str(prefix), "--resume", "--disp-batches", "2", "--num-epochs", "2")
    ranks = run_ranks(torch_python, 2, *words, CLUSTER_DATA_DIR=str(digits))
    assert [code for code, _, _ in ranks] == [0, 0], ranks
    for rank, (_, output, _) in enumerate(ranks):
        reports = [found for found in map(parse_report, output.splitlines()) if found is not None]
        assert {"accuracy", "loss"} <= set(reports[0].metrics)
        assert f"Node[{rank}] Rank {rank} of 2 on cpu, 5 batches of 32 per epoch" in output
        assert f"No complete checkpoint {prefix}-*" in output
        assert re.findall(r"Epoch\[(\d)\] Batch \[(\d)\]", output) == [("0", "2"), ("0", "4"), ("1", "2"), ("1", "4")]
    both = [find_numbers(r"Validation-accuracy=([\d.]+)", output) for _, output, _ in ranks]
    assert both[0] == both[1]  # the ranks have the same weights, and both count all images
    assert both[0][-1] > 0.9
    assert [output.count("Saved checkpoint") for _, output, _ in ranks] == [2, 0]
    files = [f"net-{epoch:04}.{kind}" for epoch in (1, 2) for kind in ("params", "states")]
    assert sorted(path.name for path in prefix.parent.iterdir()) == [*files, "net-checkpoints.json"]


def test_a_rank_that_does_not_join_is_named(torch_python: str, tmp_path: Path) -> None:
    where = {**RANK, "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port())}
    done = run_script(torch_python, "--data-dir", str(tmp_path), "--dist-timeout", "1", **where)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "train_mnist_torch.py: error: the process group did not form: rank 0 of 2, MASTER_ADDR=127.0.0.1 "
        f"MASTER_PORT={where['MASTER_PORT']}: rank 1 did not join within 1 s"
    )


@pytest.mark.slow
def test_the_script_of_a_template_trains_and_resumes(torch_python: str, tmp_path: Path) -> None:
    script = REPOSITORY / "cluster" / "templates" / "train.py"
    for epochs, shown in ((2, ["0", "1"]), (3, ["2"])):
        words = ("--checkpoint", str(tmp_path / "checkpoint.pt"), "--resume", "--epochs", str(epochs))
        for code, output, errors in run_ranks(torch_python, 2, *words, script=script):
            assert code == 0, errors
            reports = [report for report in map(parse_report, output.splitlines()) if report and report.samples_per_s]
            assert [str(report.epoch) for report in reports] == shown
            assert all("loss" in report.metrics for report in reports)


GPUS = """
from train_mnist_torch import find_gpu
one = {"CUDA_VISIBLE_DEVICES": "3"}
print([find_gpu({"LOCAL_RANK": "1"}, 4), find_gpu({}, 1), find_gpu({"LOCAL_RANK": "1", **one}, 1),
       find_gpu({"LOCAL_RANK": "1"}, 1), find_gpu({}, 0), find_gpu(one, 0)])
"""


def test_a_rank_uses_its_own_gpu(torch_python: str) -> None:
    done = subprocess.run(
        [torch_python, "-c", GPUS], env=own_environment(PYTHONPATH=str(SCRIPTS)),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[1, 0, 0, None, None, None]"
