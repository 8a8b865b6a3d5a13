"""A job's record in S3 that this machine did not submit, when the head is gone: nothing follows from it."""

import json
from typing import Any

import boto3
import pytest

from job_forms import nest_record
from job_steps import ec2_of, hosts_of, live
from project import Project
from waits import until

pytestmark = pytest.mark.sandbox

SECRET = "secret-of-another-folder"


def forge(number: int, head: str, **values: Any) -> dict[str, Any]:
    """A record of a job that was queued on the head when that ended."""
    record = {
        "id": f"20300101-00000{number}-abcdef",
        "name": f"forged{number}",
        "state": "queued",
        "workers": 1,
        "servers": 0,
        "submitted_at": 1.9e9 + number,
        "started_at": None,
        "ended_at": None,
        "exit_code": None,
        "error": None,
        "nodes": [{"name": "node-0", "ip": "10.0.0.4", "workers": 1, "instance_id": head}],
        "python": "python",
        "command": ["sh", "-c", "touch /tmp/forged"],
        "launcher": "env",
        "kv_store": "none",
    }
    return nest_record(record | values)


def test_forged_records_of_a_lost_head(spot_nodes: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    ec2, s3 = ec2_of(spot_nodes, monkeypatch), boto3.client("s3")
    s3.create_bucket(Bucket="results")
    head = hosts_of(spot_nodes)["node-0"].instance_id
    secret = spot_nodes.directory.parent / "outside.py"
    secret.write_text(f"print({SECRET!r})\n")
    more = [{"name": f"node-{index}", "workers": 1, "instance_id": head} for index in range(8)]
    records = [
        forge(0, head),
        forge(1, head, nodes=more),
        forge(2, head, script=str(secret), script_source="project"),
        forge(3, head, command=["cat", "s3://payroll/salaries.csv"]),
        forge(4, head, launcher="nonesuch"),
    ]
    for record in records:
        s3.put_object(
            Bucket="results", Key=f"jobs/{record['spec']['id']}/record.json", Body=json.dumps(record).encode()
        )
    with spot_nodes.configured(results="s3://results/jobs/"):
        ec2.terminate_instances(InstanceIds=[head])
        until(lambda: head not in live(ec2))
        left = live(ec2)

        said = [spot_nodes.run(*words).stdout for words in (("status",), ("jobs",), ("status", "--json"))]

        assert live(ec2) == left  # these commands only read
        assert "cluster up continues" in said[0]
        assert all(record["spec"]["id"] in said[1] for record in records)
        refused = spot_nodes.run("train", "--detach", "--", "true", code=1)
        assert live(ec2) == left
        assert "has ended" in refused.stderr
        mints = [call for call in spot_nodes.run("sandbox", "log", "--json").stdout.splitlines() if "payroll" in call]
        assert mints == []

        said_by_up = spot_nodes.run("up", "--yes").stderr  # launches a head because the user asks for nodes

        for record in records:
            assert said_by_up.count(f"job {record['spec']['id']} is not continued: ") == 1
        assert len(live(ec2)) == 2
        assert [job["state"] for job in json.loads(spot_nodes.run("jobs", "--json").stdout)] == ["queued"] * 5
        for host in hosts_of(spot_nodes, again=True).values():
            assert not (host.root / "tmp/forged").exists()
            found = (host.root / "home/ubuntu/.cluster").rglob("outside.py")
            assert list(found) == []
