"""Forged records of jobs, from a bucket or a head: none is continued, and one sentence says why."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs, to_builtins

from cluster.app import App
from cluster.recovery.consent import check_consent, note_end, note_order
from cluster.recovery.replacement import replace_lost
from foundation.decode import decode
from foundation.errors import ClusterError
from node.protocol import JobHost, JobSpec, Order, Record
from node.train_settings import TrainSettings
from train.follow.records import read_record

ORDER = Order(
    spec=JobSpec(
        id="20300101-000000-abcdef",
        name="mine",
        workers=2,
        servers=2,
        train=TrainSettings(script="train.py", args=("--data", "s3://mine/data/"), launcher="ssh"),
        script_source="project",
        python="/home/ubuntu/.cluster/env/e/bin/python",
    ),
    hosts=(
        JobHost(name="node-0", ip="10.0.0.4", workers=1, servers=1, instance_id="i-0"),
        JobHost(name="node-1", ip="10.0.0.5", workers=1, servers=1, instance_id="i-1"),
    ),
)
RECORD = Record(spec=ORDER.spec, nodes=ORDER.hosts, state="running", submitted_at=1.0)
OTHER = "20300101-000000-fedcba"
NOT_OURS = "its record is not that of the job that this machine submitted"
UNKNOWN = "it was not submitted from this machine"


@pytest.fixture
def app(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    app.config_path.write_text('name = "demo"\ncloud = "aws"\n[provision]\nnodes = 2\n')
    return app


def as_written(record: Record) -> Record:
    """The record as it comes back from a bucket or a head."""
    return decode(json.dumps(to_builtins(record)).encode(), Record)


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        ({"command": ("sh", "-c", "evil")}, NOT_OURS),
        ({"train": structs.replace(ORDER.spec.train, script="../.ssh/id_ed25519")}, NOT_OURS),
        ({"id": OTHER}, UNKNOWN),
    ],
)
def test_a_forged_record(forged: dict[str, Any], why: str, app: App) -> None:
    note_order(app, ORDER)
    record = as_written(structs.replace(RECORD, spec=structs.replace(RECORD.spec, **forged)))
    with pytest.raises(ClusterError) as caught:
        check_consent(app, record)
    assert caught.value.message.startswith(f"job {record.id} is not continued: {why}")


def test_a_job_of_this_machine(app: App) -> None:
    """It continues, also with other instances than those that it was ordered with, until it was seen to end."""
    note_order(app, ORDER)
    later = structs.replace(RECORD, state="waiting", waiting_for=("node-1",), nodes=(
        structs.replace(ORDER.hosts[0], instance_id="i-7", ip="10.0.0.9", usd_per_hour=0.3), ORDER.hosts[1],
    ))  # fmt: skip
    check_consent(app, as_written(later))
    note_end(app, ORDER.spec.id)
    with pytest.raises(ClusterError, match="is not continued: this machine has seen it end"):
        check_consent(app, as_written(later))


def test_a_head_that_says_that_a_job_waits(app: App) -> None:
    """Nothing is asked of EC2, which this machine could not reach."""
    forged = structs.replace(RECORD, state="waiting", waiting_for=("node-1",))
    with pytest.raises(ClusterError, match=f"is not continued: {UNKNOWN}"):
        replace_lost(app, read_record(json.dumps(to_builtins(forged)).encode(), source="head"))
