# ruff: noqa: ANN001, ANN201, E402, T201 - a program for a node, which has what it imports
"""Runs on a node as a user's script: kills a training that saves all the time, and checks that it can continue.

kills_on_a_node.py PREFIX ROUNDS
"""

import argparse
import glob
import os
import random
import re
import subprocess
import sys
import threading
import time

SCRIPTS = next(path for path in glob.glob(os.path.expanduser("~/.cluster/runtime/*/train/scripts")) if os.listdir(path))
sys.path.insert(0, SCRIPTS)

from common import checkpoints

PREFIX, ROUNDS = sys.argv[1], int(sys.argv[2])
# Two batches per epoch: it spends nearly all of its time saving.
TRAIN = [
    sys.executable, os.path.join(SCRIPTS, "train_mnist.py"), "--benchmark", "1", "--num-examples", "64",
    "--kv-store", "local", "--num-epochs", "100000", "--model-prefix", PREFIX, "--resume", "--keep-checkpoints", "3",
]  # fmt: skip
OPTIONS = argparse.Namespace(model_prefix=PREFIX, resume=True, load_epoch=None, only_job=None)
MODEL = "MXNet, network mlp, num_layers None, num_classes 10, image_shape (1, 28, 28), dtype float32"


def train_and_kill(delay_s):
    """(first epoch, last epoch that it reported as saved) of a training killed delay_s after its first save."""
    process = subprocess.Popen(TRAIN, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    begun, saved = 0, 0
    for line in process.stdout:
        begun = int((re.findall(r"Resumed from epoch (\d+)", line) or [begun])[0])
        found = re.findall(r"Saved checkpoint to .*-(\d+)\.params", line)
        if found and not saved:
            threading.Timer(delay_s, process.kill).start()
        saved = int((found or [saved])[0])
    assert process.wait() == -9, "it ended without a kill"
    return begun, saved


last = 0
for number in range(ROUNDS):
    begun, saved = train_and_kill(random.uniform(0, 0.4))
    assert begun == last, (begun, last)
    newest = checkpoints.Checkpoints(OPTIONS, MODEL, "").find()
    assert newest is not None
    # The last reported checkpoint, or one more that it could not report.
    assert newest.epoch in {saved, saved + 1}, (newest.epoch, saved)
    last = newest.epoch
    print(f"{time.strftime('%H:%M:%S')} round {number}: began with {begun}, killed when {saved} was saved, has {last}")
print(f"{ROUNDS} kills survived")
