"""Records and samples from the head and from S3: damaged ones do not hide others."""

import json
import time
from typing import Any

import pytest
from msgspec import structs

from foundation.errors import ClusterError, NotFoundError
from job_channels import LOG, FakeHead, channel
from job_forms import nest_record
from node.protocol import MAX_RECORD_BYTES
from s3_server import REGION, S3Server
from train.follow import records as records_module
from train.follow.records import (
    MAX_JOBS,
    DamagedRecordError,
    choose_job,
    find_last_copy,
    find_running,
    merge_records,
    open_s3_log,
    read_jobs,
    read_record,
    read_s3_records,
)
from train.follow.samples import read_samples

GOOD: dict[str, Any] = {
    "id": "20261121-000000-abcdef",
    "name": "train_mnist",
    "state": "running",
    "workers": 2,
    "servers": 2,
    "submitted_at": 1000.0,
    "started_at": 1001.5,
    "ended_at": None,
    "exit_code": None,
    "error": None,
    "left": {"node-1": [[7, "python"]]},
    "nodes": [{"name": "node-0", "ip": "10.0.0.1", "instance_id": "i-1"}],
    "roles": [{"role": "worker", "host": "node-0", "number": 0, "rank": None, "ended_at": None}],
}
LATER = {"of a later version": {"what": ["ever"]}}
KEYS = (
    "attempts beside cause code command cost_usd cwd ended_at env error exit_code files head_replaces held_at id image "
    "job_number kv_store launcher left library max_duration_s name nodes nodes_credentials on_node_loss output_url "
    "owner packages pending processes project python scheduler script script_source selection servers setup stacks "
    "stall started_at state subfolder submitted_at supervisor waiting_for warnings workers"
)
"""The keys of a job in `cluster jobs --json`, without those that the command adds."""
DEEP = "[" * 1_000_000 + "]" * 1_000_000


def but(**values: Any) -> bytes:
    return json.dumps({**nest_record({**GOOD, **values}), **LATER}).encode()


DAMAGED = {
    "nothing": b"",
    "half": but()[:-20],
    "an id that is a path": but(id="../../x"),
    "workers in words": but(workers="two"),
    "thousands of digits": but().replace(b'"workers": 2', b'"workers": ' + b"9" * 5000),
    "no UTF-8": but().replace(b"train_mnist", b"\xff\xfe"),
    "long": but(error="x" * MAX_RECORD_BYTES),
}


def test_a_good_record_is_read_completely() -> None:
    record = read_record(but(), source="head")
    assert (record.id, record.state, record.started_at, record.left) == (
        GOOD["id"],
        "running",
        1001.5,
        {"node-1": [(7, "python")]},
    )
    assert " ".join(sorted(record.document)) == KEYS
    assert {key: record.document[key] for key in GOOD if key not in ("nodes", "roles", "left")}.items() <= GOOD.items()
    assert record.nodes[0].instance_id == "i-1"
    assert record.roles[0].rank is None


def test_a_document_has_the_names_of_all_commands() -> None:
    host = {**GOOD["nodes"][0], "machine": {"type": "p3.2xlarge", "image": "ami-1", "zone": "us-east-1a"}}
    document = read_record(but(nodes=[host], files=[{"host": "node-1", "count": 1}]), source="head").document
    (node,), (process,), (files,) = document["nodes"], document["processes"], document["files"]
    assert node["private_ip"] == "10.0.0.1"
    assert node["machine"] == {"instance_type": "p3.2xlarge", "image_id": "ami-1", "zone": "us-east-1a"}
    assert (process["node"], files["node"]) == ("node-0", "node-1")


def test_the_running_job_is_not_one_beside_it() -> None:
    training, notebook, pending = (
        read_record(but(id=f"20261121-00000{number}-abcdef", state=state), source="head")
        for number, state in enumerate(("running", "running", "pending"))
    )
    notebook = structs.replace(notebook, spec=structs.replace(notebook.spec, beside=True))
    assert find_running([pending, notebook, training]) is training
    assert find_running([notebook, pending]) is pending
    assert find_running([notebook]) is notebook


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_record_does_not_hide_others(what: str) -> None:
    other = but(id="20261121-000001-abcdef", name="other", state="done", submitted_at=900.0)
    good, *rest = (
        merge_records(read_jobs(b'{"jobs": [' + b", ".join([DAMAGED[what], other]) + b"]}")[0])
        if what in ("an id that is a path", "workers in words", "long")
        else (merge_records([read_record(other, source="head"), read_record(DAMAGED[what], source="head")]))
    )
    assert (good.name, good.state) == ("other", "done")
    [damaged] = rest
    assert damaged.is_damaged
    assert damaged.error
    assert len(damaged.error) < 300
    assert "\n" not in damaged.error
    assert damaged.document == {"id": damaged.id, "state": "damaged", "error": damaged.error}
    assert not damaged.has_ended
    records = (good, damaged)
    assert choose_job(records, None) == good
    assert find_running(records) is None
    with pytest.raises(DamagedRecordError, match="is damaged: "):
        choose_job(records, damaged.id)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"jobs": 5}', "Expected `array`"),
        (b'{"jobs": [', "truncated"),
        (b'{"jobs": ' + DEEP.encode() + b"}", "nested too deeply"),
        (b'{"jobs": [' + b"1," * (MAX_JOBS + 2) + b"1]}", "more than 1000 jobs"),
        (b'{"jobs": [' + b"1," * 10**6 + b"1]}", "more than 600000 values"),
        (b'{"refused": {}}', "missing required field `jobs`"),
    ],
)
def test_an_invalid_list_of_jobs_is_an_error(line: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_jobs(line)


RESULTS = "s3://results/jobs/"


def record(job: str) -> bytes:
    given = {"id": job, "name": "mine", "state": "queued", "workers": 2, "servers": 2, "submitted_at": 1.0}
    return json.dumps(nest_record(given)).encode()


def test_records_in_s3_without_other_objects(server: S3Server) -> None:
    objects = {f"jobs/2026112{day}-0/record.json": record(f"2026112{day}-0") for day in range(1, 4)}
    others = {"models/x.params": b"x", "broken/record.json": b"{", "list/record.json": b"[1]", "file": b""}
    server.put("results", {**objects, **{f"jobs/{name}": content for name, content in others.items()}})
    for results in (RESULTS, RESULTS.removesuffix("/")):
        records = read_s3_records(results, region=REGION)
        assert [found.id for found in records] == ["20261123-0", "20261122-0", "20261121-0"]
        assert {found.source for found in records} == {"s3"}


def test_the_last_copy_of_a_job(server: S3Server) -> None:
    server.put("results", {"jobs/j1/samples": b"1", "jobs/j1/output/x": b"2", "jobs/j2/events": b"3"})
    copied_at = find_last_copy(RESULTS, "j1", region=REGION)
    assert copied_at is not None
    assert abs(copied_at - time.time()) < 60
    assert find_last_copy(RESULTS, "j", region=REGION) is None


@pytest.mark.usefixtures("server")
def test_a_bucket_that_does_not_exist_has_no_jobs() -> None:
    assert read_s3_records(RESULTS, region=REGION) == ()
    with pytest.raises(NotFoundError):
        open_s3_log(RESULTS, "j1", region=REGION)


def sample(t: float, host: str = "node-0") -> bytes:
    return json.dumps({"t": t, "host": host, "over_s": 5}).encode() + b"\n"


def test_samples_of_a_job_in_s3(server: S3Server) -> None:
    lines = (*map(sample, (15, 5, 10)), b'{"t": "damaged"}\n')
    server.put("results", {"jobs/j1/samples": b"".join(lines)})
    job = read_record(record("j1"), source="s3")
    found = read_samples(job, None, results=RESULTS, region=REGION, since=5)
    assert [one.t for one in found] == [10, 15]
    other = read_record(record("j2"), source="s3")
    assert read_samples(other, None, results=RESULTS, region=REGION) == []


def test_samples_of_the_head_in_the_order_of_their_times() -> None:
    lines = (sample(15), sample(10, "node-1"), b'{"t": "damaged"}\n', sample(10), sample(5))
    head = FakeHead(lambda _: channel(b'{"samples": true}\n', *lines)).make()
    found = read_samples(read_record(record("j1"), source="head"), head, results=None, region="us-east-1", since=5)
    assert [(one.t, one.host) for one in found] == [(10, "node-0"), (10, "node-1"), (15, "node-0")]


def test_a_log_is_read_completely_or_from_an_offset(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "LOG_PIECE_BYTES", 101)
    server.put("results", {"jobs/j1/events": LOG, "jobs/j0/events": b""})
    log = open_s3_log(RESULTS.removesuffix("/"), "j1", region=REGION)
    assert (log.size, log.read(0, log.size)) == (len(LOG), LOG)
    assert list(log.lines()) == LOG.splitlines()
    last = LOG.splitlines()[-1]
    assert list(log.lines(len(LOG) - len(last) - 1)) == [last]
    log = open_s3_log(RESULTS, "j0", region=REGION)
    assert list(log.lines()) == []
    with pytest.raises(NotFoundError, match="jobs/j2/events"):
        open_s3_log(RESULTS, "j2", region=REGION)


def test_a_missing_permission_to_list_is_an_error(server: S3Server) -> None:
    server.put("results", {"jobs/j1/record.json": record("j1")})
    with server.caller_who_may("s3:GetObject"), pytest.raises(ClusterError, match="s3:ListBucket is needed"):
        read_s3_records(RESULTS, region=REGION)
