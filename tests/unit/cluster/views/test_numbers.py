"""`cluster jobs JOB --metrics`."""

from typing import Any

import pytest

from cluster.views.numbers import number_documents, render_csv, render_numbers
from node.job.scalars import Row


def row(worker: int, step: int, **more: Any) -> Row:
    fields: dict[str, Any] = {"at": 1764273815.5, "host": f"node-{worker}", "epoch": 0, "batch": step}
    return Row(worker=worker, step=step, **{**fields, **more})


ROWS = (
    row(0, 20, numbers={"samples/s": 3280.254, "accuracy": 0.5}),
    row(1, 20, numbers={"samples/s": 3281.0}),
    row(0, 20, batch=None, numbers={"validation-accuracy": 0.98}),
)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.localtime", lambda at: __import__("time").gmtime(at))


def test_a_table() -> None:
    assert render_numbers(ROWS).splitlines() == [
        "TIME                 WORKER  HOST    EPOCH  BATCH  STEP  samples/s  accuracy  validation-accuracy",
        "2025-11-27 20:03:35  0       node-0  0      20     20    3280       0.5       -",
        "2025-11-27 20:03:35  1       node-1  0      20     20    3281       -         -",
        "2025-11-27 20:03:35  0       node-0  0      -      20    -          -         0.98",
    ]
    assert render_numbers(ROWS, columns=40).splitlines()[0] == "WORKER  EPOCH  STEP  samples/s  accuracy"
    assert render_numbers(()) == "no worker has reported a number"


def test_csv_and_json() -> None:
    assert render_csv(ROWS).splitlines() == [
        "time,worker,host,epoch,batch,step,samples/s,accuracy,validation-accuracy",
        "2025-11-27T20:03:35.500+00:00,0,node-0,0,20,20,3280.254,0.5,",
        "2025-11-27T20:03:35.500+00:00,1,node-1,0,20,20,3281.0,,",
        "2025-11-27T20:03:35.500+00:00,0,node-0,0,,20,,,0.98",
    ]
    assert number_documents(ROWS)[1] == {
        "time": "2025-11-27T20:03:35.500+00:00",
        "worker": 1,
        "host": "node-1",
        "step": 20,
        "epoch": 0,
        "batch": 20,
        "numbers": {"samples/s": 3281.0},
    }
