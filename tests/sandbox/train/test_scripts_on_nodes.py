"""The training scripts and the data formats with the real MXNet, on two sandbox nodes."""

import json
import re

import pytest

from project import Project

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

TRAIN = ["--data-train", "s3://cluster-demo/digits/train/"]
VAL = ["--data-val", "s3://cluster-demo/digits/val/"]


@pytest.fixture(scope="module")
def nodes(two_nodes: Project) -> Project:
    two_nodes.run("data", "demo", "digits")
    two_nodes.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")
    return two_nodes


def train_with(nodes: Project, options: list[str], *words: str, script: str = "train_mnist.py") -> str:
    """Runs `cluster train` with a script's options; returns stdout and stderr together."""
    with nodes.configured(args=options, script=script):
        done = nodes.run("train", *words)
    return done.stdout + done.stderr


def validations(output: str, epoch: int) -> list[str]:
    """The validation accuracy of each worker in an epoch, in the order of ranks."""
    return [
        value
        for _, value in sorted(re.findall(rf"Node\[(\d)\] Epoch\[{epoch}\] Validation-accuracy=([0-9.]+)", output))
    ]


def test_workers_with_unequal_parts_stay_in_step(nodes: Project) -> None:
    """Three parts of four shards: one more batch on one worker would hang a dist_sync job for ever."""
    output = train_with(nodes, [*TRAIN, *VAL, "--batch-size", "7", "--num-epochs", "3"], "-n", "3", "-s", "1")
    counts = re.findall(r"Node\[\d\] \d of 3 workers, (\d+) batches of 7 per epoch", output)
    assert counts == ["71", "71", "71"]
    for epoch in range(3):
        found = validations(output, epoch)
        assert len(found) == 3
        # All have the same weights, and all of the 297 images exactly once.
        assert len(set(found)) == 1
        assert abs(float(found[0]) * 297 - round(float(found[0]) * 297)) < 0.001


IMAGES = ["--num-layers", "8", "--num-examples", "256", "--batch-size", "64"]


def test_a_training_continues_from_its_newest_checkpoint(nodes: Project) -> None:
    """Two jobs of two epochs equal one of four: other workers, from S3, at the right rate, with the same optimizer."""
    prefix = "s3://cluster-demo/models/resumed"
    options = [*IMAGES, "--model-prefix", prefix, "--resume", "--keep-checkpoints", "2", "--num-epochs"]
    output = train_with(nodes, [*options, "2"], script="train_cifar10.py")
    path = r"/\S+/cluster-demo/models/resumed"
    assert re.search(rf"No complete checkpoint {path}-\*: training begins with epoch 0", output)
    output = train_with(nodes, [*options, "4"], script="train_cifar10.py")
    for rank in (0, 1):
        assert re.search(rf"Node\[{rank}\] Loaded {path}-0002\.params", output)
        assert f"Node[{rank}] Resumed from epoch 2 batch 0" in output
    assert "from scratch" not in output
    assert re.findall(r"Epoch\[(\d)\] Time cost", output).count("2") == 2
    assert "Epoch[1] Time cost" not in output
    listed = json.loads(nodes.run("data", "ls", "--json", f"{prefix.rpartition('/')[0]}/").stdout)
    # A job may not delete objects, so files that it removes are emptied.
    names = [item["url"].rpartition("/")[2] for item in listed if item.get("size_bytes")]
    assert sorted(name for name in names if name.startswith("resumed-")) == [
        "resumed-0003.params", "resumed-0003.states", "resumed-0004.params", "resumed-0004.states",
        "resumed-checkpoints.json", "resumed-symbol.json",
    ]  # fmt: skip
