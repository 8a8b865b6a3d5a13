"""The training scripts and the data formats with the real MXNet, on two sandbox nodes."""

import json
import re
import shutil
import textwrap
from pathlib import Path

import pytest

from mxnet_cluster.recordio import MAGIC, encode_record
from project import Project

pytestmark = pytest.mark.sandbox

TRAIN = ["--data-train", "s3://cluster-demo/digits/train/"]
VAL = ["--data-val", "s3://cluster-demo/digits/val/"]


@pytest.fixture(scope="module")
def nodes(two_nodes: Project) -> Project:
    two_nodes.run("data", "demo", "digits")
    two_nodes.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")
    return two_nodes


def train_with(
    nodes: Project,
    options: list[str],
    *words: str,
    script: str = "train_mnist.py",
    results: str | None = None,
    mode: str | None = None,
    code: int = 0,
) -> str:
    """Runs `cluster train` with a script's options, [data] results and mode; returns stdout and stderr together."""
    more = {key: value for key, value in (("results", results), ("mode", mode)) if value is not None}
    with nodes.configured(args=options, script=script, **more):
        done = nodes.run("train", *words, code=code)
    return done.stdout + done.stderr


def validations(output: str, epoch: int) -> list[str]:
    """The validation accuracy of each worker in an epoch, in the order of ranks."""
    return [
        value
        for _, value in sorted(re.findall(rf"Node\[(\d)\] Epoch\[{epoch}\] Validation-accuracy=([0-9.]+)", output))
    ]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("data", [[], [*TRAIN, *VAL]], ids=["idx", "records"])
def test_equal_seeds_give_equal_results(nodes: Project, data: list[str]) -> None:
    """MXNet reads S3 itself, or files on the nodes."""
    options = [*data, "--num-epochs", "2", "--seed", "7"]
    native, staged = (train_with(nodes, options, mode=mode) for mode in ("native", "stage"))
    found = [sorted(re.findall(r"Node\[\d\] Epoch\[\d\] \w+-accuracy=[0-9.]+", output)) for output in (native, staged)]
    assert len(found[0]) == 8
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--top-k", "3", "--monitor", "10", "--num-epochs", "1"],
        ["--test-io", "--num-epochs", "1", "--disp-batches", "5", *TRAIN],
        ["--num-examples", "300", "--num-epochs", "2", "--disp-batches", "2"],
    ],
    ids=lambda options: options[0].strip("-"),
)
def test_other_ways_to_train(nodes: Project, options: list[str]) -> None:
    output = train_with(nodes, options)
    if "--test-io" in options:
        assert len(re.findall(r"Epoch\[0\] Read 736 samples, [0-9.]+ samples/sec", output)) == 2
        assert "accuracy" not in output
        return
    last = int(options[options.index("--num-epochs") + 1]) - 1
    assert len(validations(output, last)) == 2
    assert ("Validation-top_k_accuracy_3=" in output) == ("--top-k" in options)
    if "--num-examples" in options:
        assert "4 batches of 32 per epoch" in output


@pytest.mark.slow
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
    folder = "s3://cluster-demo/records/"
    assert f"copied {len(payloads)}" in train_with(nodes, [], script="copy_records.py", results=folder)
    nodes.run("data", "get", "s3://cluster-demo/records/theirs.rec", str(tmp_path / "theirs.rec"))
    assert (tmp_path / "theirs.rec").read_bytes() == (tmp_path / "ours.rec").read_bytes()


IMAGES = ["--num-layers", "8", "--num-examples", "256", "--batch-size", "64"]


@pytest.mark.slow
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
    options[1] = "14"
    output = train_with(nodes, [*options, "5"], script="train_cifar10.py", code=1)
    assert "resumed-0004.params is a model of MXNet, network resnet, num_layers 8, " in output


THEIRS = """
    import argparse
    import os

    import mxnet as mx

    from common import layers

    parser = argparse.ArgumentParser()
    parser.add_argument("--kv-store", type=str, default="device")
    parser.add_argument("--gpus", type=str)
    parser.add_argument("--model-prefix", type=str)
    args = parser.parse_args()
    kv = mx.kvstore.create(args.kv_store)

    def read(what, rank=0, parts=1):
        return mx.io.MNISTIter(
            image="data/%s-images-idx3-ubyte" % what, label="data/%s-labels-idx1-ubyte" % what,
            batch_size=50, num_parts=parts, part_index=rank, flat=True)

    os.makedirs("models", exist_ok=True)
    devices = [mx.gpu(int(i)) for i in args.gpus.split(",")] if args.gpus else mx.cpu()
    module = mx.mod.Module(layers.mlp(), context=devices)
    module.fit(
        read("train", kv.rank, kv.num_workers), eval_data=read("t10k"), kvstore=kv, num_epoch=4,
        optimizer_params={"learning_rate": 0.2}, initializer=mx.init.Xavier(),
        batch_end_callback=mx.callback.Speedometer(50, 5),
        epoch_end_callback=mx.callback.do_checkpoint("models/" + args.model_prefix) if kv.rank == 0 else None)
    print("worker", kv.rank, "of", kv.num_workers, "scored", module.score(read("t10k"), "acc"))
"""
THEIR_LAYERS = """
    import mxnet as mx

    def mlp():
        data = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=64), act_type="relu")
        return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=10), name="softmax")
"""


@pytest.mark.slow
def test_somebody_elses_script_runs_as_it_is(nodes: Project) -> None:
    """It knows nothing of this project: its modules, data and models are in its own folder, its options are MXNet's."""
    for name, text in (("train.py", THEIRS), ("common/__init__.py", ""), ("common/layers.py", THEIR_LAYERS)):
        path = nodes.directory / "theirs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    shutil.copytree(nodes.directory / "digits", nodes.directory / "theirs" / "data", dirs_exist_ok=True)
    words = "cd theirs && exec python train.py --kv-store dist_sync --model-prefix net"
    with nodes.configured(sync=["theirs/"]):
        done = nodes.run("train", "--", "sh", "-c", words)
    scores = re.findall(r"worker (\d) of 2 scored \[\('accuracy', ([0-9.]+)\)\]", done.stdout)
    assert sorted(rank for rank, _ in scores) == ["0", "1"]
    assert scores[0][1] == scores[1][1]
    assert float(scores[0][1]) > 0.5
