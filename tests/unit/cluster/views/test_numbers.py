"""`cluster jobs JOB --metrics`."""

import json
from typing import Any

import pytest

from cluster.views.numbers import render_csv, render_json, render_numbers
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


def test_lines() -> None:
    assert list(render_numbers(ROWS)) == [
        "2025-11-27 20:03:35 GMT  worker 0 node-0  epoch 0  batch 20  step 20  samples/s 3280  accuracy 0.5",
        "2025-11-27 20:03:35 GMT  worker 1 node-1  epoch 0  batch 20  step 20  samples/s 3281",
        "2025-11-27 20:03:35 GMT  worker 0 node-0  epoch 0  step 20  validation-accuracy 0.98",
    ]
    assert list(render_numbers(())) == ["no worker has reported a number"]


def test_csv_and_json() -> None:
    assert list(render_csv(ROWS)) == [
        "time,rank,node,epoch,batch,step,name,value",
        "2025-11-27T20:03:35.500+00:00,0,node-0,0,20,20,samples/s,3280.254",
        "2025-11-27T20:03:35.500+00:00,0,node-0,0,20,20,accuracy,0.5",
        "2025-11-27T20:03:35.500+00:00,1,node-1,0,20,20,samples/s,3281.0",
        "2025-11-27T20:03:35.500+00:00,0,node-0,0,,20,validation-accuracy,0.98",
    ]
    assert json.loads(list(render_json(ROWS))[1]) == {
        "time": "2025-11-27T20:03:35.500+00:00",
        "rank": 1,
        "node": "node-1",
        "step": 20,
        "epoch": 0,
        "batch": 20,
        "numbers": {"samples/s": 3281.0},
    }
