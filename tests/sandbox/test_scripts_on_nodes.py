"""The training scripts and the data formats with the real MXNet, on two sandbox nodes."""

import json
import re
import textwrap
from pathlib import Path

import pytest

from project import Project
from train.recordio import MAGIC, encode_record

pytestmark = pytest.mark.sandbox

TRAIN = ["--data-train", "s3://cluster-demo/digits/train/"]
VAL = ["--data-val", "s3://cluster-demo/digits/val/"]


@pytest.fixture(scope="module")
def nodes(two_nodes: Project) -> Project:
    two_nodes.run("data", "demo", "digits")
    two_nodes.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")
    return two_nodes


def train_with(nodes: Project, options: list[str], *words: str, script: str = "train_mnist.py", code: int = 0) -> str:
    """Run `cluster train` with a script's options; its two outputs together."""
    path = nodes.directory / "cluster.toml"
    kept = path.read_text()
    text = re.sub(r"^args = .*$", lambda _: f"args = {json.dumps(options)}", kept, flags=re.MULTILINE)
    nodes.write(re.sub(r"^script = .*$", f'script = "{script}"', text, flags=re.MULTILINE))
    try:
        done = nodes.run("train", *words, code=code)
    finally:
        path.write_text(kept)
    return done.stdout + done.stderr


def validations(output: str, epoch: int) -> list[str]:
    """What each worker found in an epoch, by rank."""
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
        # All have the same weights and all of the 297 images: neither fewer nor some of them twice.
        assert len(set(found)) == 1
        assert abs(float(found[0]) * 297 - round(float(found[0]) * 297)) < 0.001


def test_both_formats_give_the_same_validation_set(nodes: Project) -> None:
    """A model scored on idx files and on records: the same images, so the same accuracy."""
    prefix = "s3://cluster-demo/models/formats"
    train_with(nodes, ["--model-prefix", prefix, "--num-epochs", "2"])
    # A rate that changes nothing: what is scored is the saved model.
    again = ["--model-prefix", prefix, "--load-epoch", "2", "--num-epochs", "3", "--lr", "1e-12", "--mom", "0"]
    by_idx = train_with(nodes, again)
    by_records = train_with(nodes, [*again, *TRAIN, *VAL])
    assert "Loaded s3://cluster-demo/models/formats-0002.params" in by_idx
    assert validations(by_idx, 2) == validations(by_records, 2)
    assert len(validations(by_idx, 2)) == 2


def test_a_part_without_a_batch_ends_the_job_with_words(nodes: Project) -> None:
    output = train_with(nodes, ["--batch-size", "800"], code=1)
    assert "worker 0's part of the training data has 750 examples, less than one batch of 800" in output
    assert "Traceback" not in output


def test_data_that_is_not_there_ends_the_job_with_words(nodes: Project) -> None:
    output = train_with(nodes, ["--data-dir", "s3://cluster-demo/nope/"], code=1)
    assert 'fail to open "s3://cluster-demo/nope/train-images-idx3-ubyte"' in output
    assert "Traceback" not in output


def test_options_that_cannot_work_end_the_job_with_words(nodes: Project) -> None:
    output = train_with(nodes, ["--network", "vgg"], code=2)
    assert "invalid choice: 'vgg'" in output
    output = train_with(nodes, ["--gpus", "0"], code=1)
    assert "--gpus 0: MXNet 1.7.0 finds no GPUs here" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "options",
    [
        ["--kv-store", "dist_async", "--optimizer", "adam", "--lr", "0.001", "--num-epochs", "2"],
        ["--gc-type", "2bit", "--gc-threshold", "0.01", "--num-epochs", "2"],
        ["--top-k", "3", "--monitor", "10", "--num-epochs", "1"],
        ["--test-io", "--num-epochs", "1", "--disp-batches", "5", *TRAIN],
        ["--num-examples", "300", "--num-epochs", "2", "--disp-batches", "2"],
    ],
    ids=lambda options: options[0].strip("-"),
)
def test_other_ways_to_train(nodes: Project, options: list[str]) -> None:
    words = ["--kv-store", "dist_async"] if "dist_async" in options else []
    output = train_with(nodes, options, *words)
    if "--test-io" in options:
        assert len(re.findall(r"Epoch\[0\] Read 736 samples, [0-9.]+ samples/sec", output)) == 2
        assert "accuracy" not in output
        return
    last = int(options[options.index("--num-epochs") + 1]) - 1
    assert len(validations(output, last)) == 2
    assert ("Validation-top_k_accuracy_3=" in output) == ("--top-k" in options)
    if "--num-examples" in options:
        assert "4 batches of 32 per epoch" in output


def test_mxnet_reads_what_our_writer_writes_and_writes_what_our_reader_reads(nodes: Project, tmp_path: Path) -> None:
    """Payloads that hold the magic number at every alignment, byte for byte, in both directions."""
    payloads = [b"", MAGIC, MAGIC * 3, b"abcd" + MAGIC + b"e"]
    payloads += [b"x" * before + MAGIC + b"y" * after for before in range(9) for after in range(5)]
    (tmp_path / "ours.rec").write_bytes(b"".join(map(encode_record, payloads)))
    nodes.run("data", "put", str(tmp_path / "ours.rec"), "s3://cluster-demo/records/ours.rec")
    script = """
        import sys
        import mxnet as mx
        store = mx.kv.create("dist_sync")
        if store.rank != 0: sys.exit()
        reader = mx.recordio.MXRecordIO("s3://cluster-demo/records/ours.rec", "r")
        writer = mx.recordio.MXRecordIO("s3://cluster-demo/records/theirs.rec", "w")
        count = 0
        while True:
            payload = reader.read()
            if payload is None: break
            writer.write(payload)
            count += 1
        writer.close()
        print("copied", count)
    """
    (nodes.directory / "copy_records.py").write_text(textwrap.dedent(script))
    assert f"copied {len(payloads)}" in train_with(nodes, [], script="copy_records.py")
    nodes.run("data", "get", "s3://cluster-demo/records/theirs.rec", str(tmp_path / "theirs.rec"))
    assert (tmp_path / "theirs.rec").read_bytes() == (tmp_path / "ours.rec").read_bytes()
