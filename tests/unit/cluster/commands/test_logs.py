"""`cluster logs` as JSON."""

import json
from pathlib import Path

import pytest

from cluster.app import App
from cluster.commands.job.logs import JsonLines
from cluster.views.jobs import event_document
from job_channels import LOG
from node.protocol import LogWanted
from train.follow.events import Event, EventReader
from train.follow.run import pass_on

EPOCH = "1970-01-01T00:00:"


def test_a_log_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    sink = JsonLines(App(config_path=Path("cluster.toml")), LogWanted(ranks=(1,)))
    pass_on(LOG.splitlines(), EventReader(), sink.take)
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [item["kind"] for item in shown] == ["state", "state", "line", "message", "result"]
    assert shown[2] == {
        "time": f"{EPOCH}03.000+00:00", "kind": "line", "role": "worker", "rank": 1, "node": "node-0", "text": "ünïcode"
    }  # fmt: skip
    result = {"state": "done", "exit_code": 0, "error": None}
    assert shown[4] == {"time": f"{EPOCH}03.300+00:00", "kind": "result", **result}
    warned = Event(kind="warnings", at=1.0, warnings=("x", "y"))
    assert event_document(warned) == {"time": f"{EPOCH}01.000+00:00", "kind": "warnings", "warnings": ["x", "y"]}
    hangs = {"time": f"{EPOCH}09.000+00:00", "kind": "message", "text": "x", "stalled_since": f"{EPOCH}05.000+00:00"}
    assert event_document(Event(kind="message", at=9.0, text="x", stalled_since=5.0)) == hangs
    assert event_document(Event(kind="message", at=9.0, text="x", stalled_since=0.0)) == {
        **hangs,
        "stalled_since": None,
    }
