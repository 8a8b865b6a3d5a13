"""Workers of MXNet's that train with --kv-store device, as its examples do by default: N models, and not one."""

import json
import re
from collections.abc import Iterator

import pytest

from job_steps import borrowed
from project import Project
from waits import until

pytestmark = pytest.mark.sandbox

# After MXNet's example/image-classification: Module.fit, with a Speedometer's lines and the kv-store of an option.
SCRIPT = """
import argparse, logging, os, time
import mxnet as mx
import numpy as np

logging.basicConfig(level=logging.INFO)
parser = argparse.ArgumentParser()
parser.add_argument("--kv-store", default="device")
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()
kv = mx.kv.create(args.kv_store)
data = mx.io.NDArrayIter(np.random.rand(64, 8), np.random.randint(0, 2, 64), batch_size=8)
symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax")
model = mx.mod.Module(symbol)

def wait(*_):
    while os.path.exists(os.path.expanduser("~/train")):
        time.sleep(0.1)

model.fit(data, num_epoch=args.epochs, kvstore=kv, batch_end_callback=mx.callback.Speedometer(8, 2),
          epoch_end_callback=wait)
print("trained", flush=True)
"""
WARNING = "2 workers trained 2 separate models: the script did not use a dist kv-store. Pass --kv-store dist_sync"
ALONE = "no worker connected to the servers, so each of the 2 workers was on its own"


@pytest.fixture
def nodes(two_nodes: Project) -> Iterator[Project]:
    with borrowed(two_nodes) as project:
        yield project


def test_separate_models_are_warned_of_while_they_are_trained_and_at_the_end(nodes: Project) -> None:
    nodes.run("exec", "--", "touch", "train")
    with nodes.running("train", "--name", "separate", "--", "python", "-c", SCRIPT) as process:
        # Each worker has reported an epoch and waits; the job has not ended.
        until(lambda: f"warning: {WARNING}" in nodes.messages.read_text(), "no warning comes")
        (job,) = [one for one in json.loads(nodes.run("jobs", "--json").stdout) if one["name"] == "separate"]
        assert job["state"] == "running"
        until(lambda: "warning: 2 workers" in nodes.run("status").stdout, "the status does not know")
        nodes.run("exec", "--", "rm", "train")
        shown, _ = process.communicate(timeout=60)
    said = nodes.messages.read_text()
    assert process.returncode == 0, said
    assert shown.count("trained\n") == 2
    assert f"[supervisor node-0] warning: {WARNING}" in shown
    assert [line for line in said.splitlines() if "warning" in line] == [
        f"warning: {WARNING}",
        f"warning: {WARNING}",
        f"job {job['id']}: done, but see the warning above",
    ]
    (row,) = [line for line in nodes.run("jobs").stdout.splitlines() if line.startswith(job["id"])]
    assert "warning: 2 workers trained 2 separate models" in row
    assert f"warning: {WARNING}" in nodes.run("logs", job["id"]).stderr


def test_the_same_script_with_the_option_that_the_warning_names(nodes: Project) -> None:
    done = nodes.run("train", "--", "python", "-c", SCRIPT, "--kv-store", "dist_sync")
    assert "separate models" not in done.stdout + done.stderr
    assert re.search(r": done$", done.stderr)


def test_workers_that_train_without_a_word_are_warned_of_at_the_end(nodes: Project) -> None:
    done = nodes.run("train", "--", "python", "-c", "import mxnet as mx; print('my own words')")
    (at_once, again, _) = [line for line in done.stderr.splitlines() if "warning" in line]
    assert at_once == again
    assert at_once.startswith(f"warning: {ALONE}")
