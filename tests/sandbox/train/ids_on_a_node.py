"""Prints the ids of the records that MXNet's readers give each of N workers: run as a job on a folder in S3.

Each worker prints a line "IDS {...}" with the ids of its own part, by epoch; worker 0 also with those of all parts, for
several numbers of workers.
"""

import json
import os
import sys
from typing import Any

import mxnet as mx


def read_ids(part: int, count: int, **settings: Any) -> list[list[int]]:
    """The ids of a part, a list for each of two epochs."""
    try:
        reader = mx.io.ImageRecordIter(
            path_imgrec=sys.argv[1], data_shape=(1, 4, 4), batch_size=1, num_parts=count, part_index=part,
            preprocess_threads=1, verbose=False, **settings
        )  # fmt: skip
    except StopIteration:  # the part has no record
        return [[], []]
    return [[int(batch.label[0].asscalar()) for batch in ([] if reader.reset() else reader)] for _ in range(2)]


rank, size = int(os.environ["CLUSTER_RANK"]), int(os.environ["CLUSTER_WORLD_SIZE"])
printed = {"own": read_ids(rank, size)}
if rank == 0:
    for workers in (1, 2, 3, 5):
        printed[str(workers)] = [read_ids(part, workers) for part in range(workers)]
    printed["shuffled"] = [read_ids(part, 3, shuffle=True, shuffle_chunk_size=1) for part in range(3)]
    records = mx.recordio.MXRecordIO(os.path.dirname(sys.argv[1].partition(";")[0]) + "/s-1.rec", "r")
    printed["by name"] = [mx.recordio.unpack(record)[0].id for record in iter(records.read, None)]
    if os.environ.get("CLUSTER_DATA_MODE") == "stage":  # MXNet itself reads no index from S3
        dataset = mx.gluon.data.RecordFileDataset(sys.argv[2] + "one.rec")
        printed["indexed"] = [mx.recordio.unpack(dataset[at])[0].id for at in range(len(dataset))]
sys.stdout.write("IDS " + json.dumps(printed) + "\n")
