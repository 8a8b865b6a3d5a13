"""Records of jobs as a head keeps them, and the state of a cluster with a head."""

import json
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from job_forms import nest_record
from provision.model import ClusterState, InstanceState
from provision_world import make_node
from train.follow.records import JobRecord, Source, read_record

NOW = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)


def make_document(number: int, **values: Any) -> dict[str, Any]:
    """The record of a job that has succeeded, as JSON; a job with a greater number is newer."""
    made = {
        "id": f"2026112{number}-000000-abc",
        "name": "train_mnist",
        "state": "done",
        "workers": 2,
        "servers": 2,
        "submitted_at": 1000.0 + number,
        "started_at": NOW.timestamp() - 300,
        "ended_at": NOW.timestamp() - 100,
        "exit_code": 0,
        "error": None,
        "cwd": "/home/ubuntu/x",
        "project": "x",
    }
    return nest_record({**made, **values})


def make_record(number: int, source: Source = "head", **values: Any) -> JobRecord:
    return read_record(json.dumps(make_document(number, **values)).encode(), source=source)


def make_running(number: int, source: Source = "head", **values: Any) -> JobRecord:
    return make_record(number, source, **{"state": "running", "ended_at": None, "exit_code": None, **values})


def make_state(state: InstanceState = "running") -> ClusterState:
    """A cluster that has only its head."""
    return ClusterState(name="demo", nodes=(replace(make_node(0), state=state, role="head"),))
