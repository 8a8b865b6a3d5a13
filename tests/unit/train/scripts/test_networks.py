"""The networks' names and depths, and the networks and the readers with a real MXNet."""

import subprocess
from pathlib import Path
from types import ModuleType

import pytest

import real_mxnet
from train.data.datasets import DATASETS
from training_scripts import SCRIPTS

PROGRAM = Path(__file__).with_name("networks_on_a_node.py")


@pytest.mark.parametrize(
    ("network", "asked", "size", "depth"),
    [
        ("resnet", None, 224, 50),
        ("resnet", None, 28, 110),
        ("resnet", 20, 32, 20),
        ("resnet-v2", None, 33, 50),
        ("vgg", None, 224, 16),
        ("mlp", None, 28, 0),
        ("inception-v3", 3, 299, 0),
    ],
)
def test_depths(network_names: ModuleType, network: str, asked: int | None, size: int, depth: int) -> None:
    assert network_names.find_problem(network, asked, size) is None
    assert network_names.pick_depth(network, asked, size) == depth


@pytest.mark.parametrize(
    ("network", "asked", "size", "message"),
    [
        ("resnet", 19, 224, "has 18, 34, 50, 101, 152, 200, 269 layers"),
        ("resnet", 18, 28, "has 8, 14, 20, 26, 32, 38, 44, 50 ... layers"),
        ("vgg", None, 28, "at least 32 by 32 pixels"),
        ("inception-v3", None, 74, "at least 75 by 75"),
    ],
)
def test_impossible_networks(
    network_names: ModuleType, network: str, asked: int | None, size: int, message: str
) -> None:
    assert message in network_names.find_problem(network, asked, size)


VERSIONS = ("1.5.1.post0", "1.6.0", real_mxnet.VERSION, "1.8.0.post0", "1.9.1")


@pytest.mark.parametrize(
    ("version", "which", "trained"),
    [
        (real_mxnet.VERSION, "few", 2),
        *(pytest.param(version, "all", 11, marks=pytest.mark.slow) for version in VERSIONS),
    ],
)
def test_every_network_trains_and_is_as_large_as_published(version: str, which: str, trained: int) -> None:
    """which: "few" counts the parameters of all networks, and trains two."""
    python = real_mxnet.real_mxnet(version)
    done = subprocess.run(
        [python, "-W", "ignore", PROGRAM, SCRIPTS, which], capture_output=True, text=True, check=False, timeout=280
    )
    assert (done.returncode, done.stdout) == (0, f"10 counted, {trained} trained\n"), done.stderr


def test_the_indexes_of_a_packed_folder_are_not_read_as_records(tmp_path: Path) -> None:
    DATASETS["digits"].write(tmp_path, tmp_path, 2)
    (tmp_path / "train/index").mkdir()
    (tmp_path / "train/index/part-00000.idx").write_text("0\t0\n1\t288\n")
    words = ("--data-train", f"{tmp_path}/train/", "--data-val", "", "--test-io", "1", "--num-epochs", "1")
    command = [real_mxnet.real_mxnet(), "-W", "ignore", SCRIPTS / "train_mnist.py", *words, "--batch-size", "100"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert "Epoch[0] Read 1500 samples" in done.stdout, done.stderr
