"""The PyTorch script's options without PyTorch, and a rank that no other joins; tests/sandbox trains on two nodes."""

import os
import subprocess
import sys

from project import REPOSITORY
from real_torch import real_torch
from training_scripts import SCRIPTS, find_port

OPTIONS = (
    "network", "data-dir", "batch-size", "num-epochs", "mom", "wd", "seed", "lr", "lr-factor",
    "lr-step-epochs", "warmup-epochs", "warmup-strategy", "disp-batches", "model-prefix", "save-period",
    "keep-checkpoints", "resume", "load-epoch", "checkpoint-batches", "dist-backend", "dist-timeout",
)  # fmt: skip
OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "CLUSTER_", "TORCHELASTIC", "GLOO_", "NCCL_")


def run_script(python: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {key: value for key, value in os.environ.items() if not key.startswith(OTHERS)}
    return subprocess.run(
        [python, SCRIPTS / "train_mnist_torch.py", *words], env={**own, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_options_need_no_torch() -> None:
    done = run_script(sys.executable, "--help")
    assert done.returncode == 0
    assert [option for option in OPTIONS if f"--{option} " not in done.stdout.replace("\n", " \n")] == []
    done = run_script(sys.executable, "--data-dir", "d", "--kv-store", "dist_sync")
    assert done.returncode == 2
    assert "unrecognized arguments" in done.stderr.splitlines()[-1]
    done = run_script(sys.executable)
    assert done.stderr.endswith("no data: set [data] url in cluster.toml, or add --data-dir (MNIST's files)\n")


def test_a_rank_that_does_not_join_is_an_error() -> None:
    port = str(find_port())
    where = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = run_script(real_torch(), "--data-dir", "d", "--dist-timeout", "1", **where)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("train_mnist_torch.py: error: the process group did not form: Timed out after")
    assert "1/2 clients joined" in last
