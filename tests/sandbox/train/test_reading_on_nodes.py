"""Training with the real MXNet on s3://: every record is read once per epoch, and saved files exist."""

import re

import pytest

from project import Project
from record_files import write_uneven

pytestmark = pytest.mark.sandbox

# Prints the ids of the worker's part of the records, for each of two epochs.
PROGRAM = """
import os, sys
import mxnet as mx
reader = mx.io.ImageRecordIter(
    path_imgrec=sys.argv[1], data_shape=(3, 8, 8), batch_size=1, num_parts=int(os.environ["CLUSTER_WORLD_SIZE"]),
    part_index=int(os.environ["CLUSTER_RANK"]), preprocess_threads=1, verbose=False)
for epoch in range(2):
    reader.reset()
    print("IDS", epoch, *(int(batch.label[0].asscalar()) for batch in reader), flush=True)
"""
URL, SAVED_URL = "s3://cluster-demo/ids/", "s3://cluster-demo/saved/"


@pytest.fixture(scope="module")
def nodes(two_nodes: Project) -> Project:
    write_uneven(two_nodes.directory / "ids")
    two_nodes.run("data", "put", "--create-bucket", "ids/", URL)
    (two_nodes.directory / "ids.py").write_text(PROGRAM)
    return two_nodes


@pytest.mark.parametrize("mode", [pytest.param("native", marks=pytest.mark.slow), "stage"])
def test_every_record_once_per_epoch(nodes: Project, mode: str) -> None:
    with nodes.configured(script="ids.py", args=[URL], results=SAVED_URL, mode=mode):
        done = nodes.run("train", "-v", "--plain", "--launcher", "env")
    for epoch in range(2):
        parts = re.findall(rf"\] IDS {epoch} (.*)", done.stdout)
        assert len(parts) == 2, done.stdout
        assert sorted(int(number) for part in parts for number in part.split()) == list(range(33))
    how = {"native": "read by MXNet itself", "stage": "read from files staged on the nodes"}[mode]
    assert how in done.stdout + done.stderr


def test_what_a_command_saves_at_a_url_is_there_for_the_next_job(nodes: Project) -> None:
    """On the node's disk, for a program that cannot open s3://. $CLUSTER_DATA_DIR has the data."""
    line = f"cat {SAVED_URL}m/net; echo from $CLUSTER_JOB_NAME >{SAVED_URL}m/net; ls $CLUSTER_DATA_DIR"
    with nodes.configured(script="ids.py", results=SAVED_URL, mode="stage", url=URL):
        for name in ("one", "two"):
            output = nodes.run("train", "--name", name, "--launcher", "env", "-n", "1", "--", "sh", "-c", line).stdout
    assert "] from one" in output
    assert output.count("] part-") == 3
