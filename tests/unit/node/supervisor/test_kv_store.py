"""Warnings about workers that do not use their kv-store, during the job and at its end."""

from typing import Any

import pytest

from job_channels import make_order
from job_host import LocalHead, job_host, log_has
from node.supervisor.attempts import kv_store
from ps_lite_lines import LINES

__all__ = ["job_host"]

SERVER, WORKER = LINES["mxnet==1.9.1"]
TRAINS = "Epoch[0] Batch [0-20]\tSpeed: 3280.25 samples/sec\taccuracy=0.647321"
SAYS = 'printf "%s\\n" "$LINES"; '


RUNS = log_has('"state": "running"')


def order_of(host: LocalHead, worker: str, *, lines: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """An order for a job whose servers wait for workers, like MXNet's, and whose workers print these lines."""
    env = {"SERVER": f"{SAYS} sleep 100", "SCHEDULER": "sleep 100", "WORKER": worker}
    own = {"env_server": {"LINES": SERVER[0]}, "env_worker": {"LINES": "\n".join(lines)}}
    return {**host.order(env=env), "kv_store": "dist_sync", **own, **more}


def warnings_in(log: list[dict[str, Any]]) -> list[list[str]]:
    return [event["warnings"] for event in log if "warnings" in event]


def test_no_warning_for_a_late_kv_store(job_host: LocalHead) -> None:
    """The workers first prepare their data, and print a line that looks like that of an epoch. Then they connect."""
    worker = f"echo Epoch data 3 of 7; {RUNS} {SAYS}"
    order = order_of(job_host, worker, lines=(*WORKER, TRAINS))
    order["env"] |= {"SERVER": f"{SAYS} attend", "SCHEDULER": "attend"}
    _, log = job_host.run(order)
    assert warnings_in(log) == []
    assert job_host.record()["warnings"] == []


def test_a_warning_is_withdrawn_when_a_kv_store_is_made_after_all(job_host: LocalHead) -> None:
    """Each worker first trains a model of its own, before the job's model."""
    joins = "printf '%s\\n' \"$JOINS\"; "
    worker = log_has('"warnings": ["', meanwhile=SAYS) + joins + log_has('"warnings": []')
    order = order_of(job_host, worker, lines=(TRAINS,))
    order["env"] |= {"SERVER": f"{SAYS} attend", "SCHEDULER": "attend"}
    order["env_worker"]["JOINS"] = "\n".join(WORKER)
    _, log = job_host.run(order)
    assert [len(each) for each in warnings_in(log)] == [1, 0]
    assert warnings_in(log)[0][0].startswith("2 workers trained 2 separate models: the script did not use a dist kv-")
    assert job_host.record()["warnings"] == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (TRAINS, True),
        ("INFO:root:Epoch[3] Time cost=1.234", True),
        ("Iter[0] Batch [20]\tSpeed: 120.5 samples/sec", True),
        ("[Epoch 3][Batch 99], LR: 2.8E-04, Speed: 28.997 samples/sec, ObjLoss=32.955", True),
        ("[Epoch 0] training: accuracy=0.93", True),
        ("epoch 3: loss 0.53", True),
        ("Namespace(batch_size=64, kv_store='device', lr_step_epochs='10,20', num_epochs=20, lr=0.05)", False),
        ("Number of epochs: 10", False),
        ("Start training from epoch 0", False),
        ("Loaded 60000 samples in 1.5 s", False),
        ("epochal 1 2.5", False),
    ],
)
def test_training_progress_is_distinguished_from_preparation(line: str, *, expected: bool) -> None:
    assert kv_store.is_progress(line) is expected


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ({"env": {}, "env_worker": {}}, True),
        ({"env": {"PS_VERBOSE": "2"}, "env_worker": {}}, True),
        ({"env": {"PS_VERBOSE": "0"}, "env_worker": {}}, False),
        ({"env": {}, "env_worker": {"PS_VERBOSE": "0"}}, False),
    ],
)
def test_no_warning_where_the_user_sets_ps_verbose(order: dict[str, Any], *, expected: bool) -> None:
    assert kv_store.is_reported(make_order(**order)) is expected
