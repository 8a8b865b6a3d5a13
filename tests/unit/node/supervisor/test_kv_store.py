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


def test_a_warning_is_withdrawn_when_a_kv_store_is_made_after_all(job_host: LocalHead) -> None:
    """Each worker first trains a model of its own, before the job's model."""
    joins = "printf '%s\\n' \"$JOINS\"; "
    worker = log_has('"warnings": ["', meanwhile=SAYS) + joins + log_has('"warnings": []')
    env = {"SERVER": f"{SAYS} attend", "SCHEDULER": "attend", "WORKER": worker}
    own = {"env_server": {"LINES": SERVER[0]}, "env_worker": {"LINES": TRAINS, "JOINS": "\n".join(WORKER)}}
    _, log = job_host.run({**job_host.order(env=env), "kv_store": "dist_sync", **own})
    warnings = [event["warnings"] for event in log if "warnings" in event]
    assert [len(each) for each in warnings] == [1, 0]
    assert warnings[0][0].startswith("2 workers trained 2 separate models: the script did not use a dist kv-")
    assert job_host.record()["warnings"] == []


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
