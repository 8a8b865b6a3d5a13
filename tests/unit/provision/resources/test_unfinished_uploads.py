"""`down` and incomplete uploads to S3: the uploads that it aborts, and those that it leaves."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from moto.backends import get_backend
from moto.core.models import DEFAULT_ACCOUNT_ID

import provision.resources.unfinished_uploads
from provision.down import render_receipt
from provision.resources.unfinished_uploads import IDLE_S, Uploads, find_uploads
from provision_world import World, listening, make_config

ME = "arn:aws:sts::123456789012:assumed-role/admin/ada"
BOTO = "arn:aws:sts::123456789012:assumed-role/admin/botocore-session-1800000000"
ROOT = "arn:aws:iam::123456789012:root"
NODE_ROLE = "cluster-us-east-1-demo"
DIGITS = "s3://records/digits/"


@pytest.fixture(autouse=True)
def bucket(world: World) -> None:
    world.clients.s3.create_bucket(Bucket="records")


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every upload counts as abandoned."""
    monkeypatch.setattr(provision.resources.unfinished_uploads, "IDLE_S", 0.0)


def begin(world: World, key: str, *, parts: int = 0) -> None:
    s3 = world.clients.s3
    upload_id = s3.create_multipart_upload(Bucket="records", Key=key)["UploadId"]
    for number in range(1, parts + 1):
        s3.upload_part(Bucket="records", Key=key, UploadId=upload_id, PartNumber=number, Body=b"x")


def listed(world: World) -> list[str]:
    return [each["Key"] for each in world.clients.s3.list_multipart_uploads(Bucket="records").get("Uploads", [])]


def find(world: World, *, after_s: float = 0.0, owner: str | None = None) -> Uploads:
    return find_uploads(
        world.clients.s3,
        urls=["s3://records/"],
        owner=owner or world.clients.sts.get_caller_identity()["Arn"],
        now=datetime.now(UTC) + timedelta(seconds=after_s),
        node_role=NODE_ROLE,
    )


@pytest.mark.usefixtures("idle")
def test_aborts_interrupted_uploads_below_the_folders(world: World) -> None:
    begin(world, "digits/a", parts=2)
    for key in ("results/b", "elsewhere/c", "digits-too/d"):
        begin(world, key)
    ending = world.prepare_down(DIGITS, "s3://records/results")

    receipt = world.down(ending)

    assert [type(step).__name__ for step in ending.plan.steps] == ["AbortUploads", "ForgetFiles"]
    assert listed(world) == ["digits-too/d", "elsewhere/c"]
    assert (receipt.leftovers, receipt.looked_for[-1]) == ((), "uploads")
    assert [each.resource_id for each in receipt.deleted] == ["s3://records/digits/a", "s3://records/results/b"]
    assert world.down(ending).leftovers == ()  # the uploads no longer exist


def test_keeps_and_reports_uploads_that_may_be_running(world: World) -> None:
    begin(world, "digits/a", parts=1)
    ending = world.prepare_down(DIGITS)

    receipt = world.down(ending)

    assert not ending
    assert listed(world) == ["digits/a"]
    assert receipt.leftovers == ()
    assert [each.key for each in receipt.in_progress] == ["digits/a"]
    assert "1 x upload to s3://records/, active in the last 15 minutes" in render_receipt(receipt)


@pytest.mark.parametrize("after_s", [60.0, IDLE_S + 60.0])
def test_the_newest_part_counts(world: World, after_s: float) -> None:
    begin(world, "digits/a", parts=1)
    [found] = find(world, after_s=after_s).found
    assert after_s - 10.0 < found.idle_s < after_s + 10.0


def test_reads_all_pages_whatever_the_keys_are(world: World) -> None:
    """No answer that contains the first key as it is can be parsed."""
    keys = ["digits/\x01", "digits/a b+c", "digits/p", "digits/q", "digits/r"]
    for each in ["digits/first", *keys[1:]]:
        begin(world, each)
    uploads = get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"].list_multipart_uploads("records").values()
    next(upload for upload in uploads if upload.key_name == "digits/first").key_name = keys[0]
    world.calls.made.clear()

    def shorten(params: dict[str, Any], **_: Any) -> None:
        params["MaxUploads"] = 2

    with listening(world.clients.s3, "before-parameter-build.s3.ListMultipartUploads", shorten):
        assert [each.key for each in find(world, after_s=IDLE_S).found] == keys
    assert world.calls.made.count("ListMultipartUploads") == 3


@pytest.mark.parametrize(
    ("initiator", "owner", "ours"),
    [
        (ME, ME, True),
        ("", ME, True),  # S3 does not name the initiator
        ("arn:aws:sts::123456789012:assumed-role/admin/eve", ME, False),
        ("arn:aws:iam::123456789012:user/eve", "arn:aws:iam::123456789012:user/ada", False),
        ("arn:aws:sts::123456789012:assumed-role/admin/botocore-session-1700000000", BOTO, True),
        ("arn:aws:sts::210987654321:assumed-role/admin/botocore-session-1700000000", BOTO, False),
        ("canonical-id", ROOT, True),
        ("another-id", ROOT, False),
        ("canonical-id", ME, False),
        (f"arn:aws:sts::123456789012:assumed-role/{NODE_ROLE}/i-1", ME, True),
        (f"arn:aws:sts::210987654321:assumed-role/{NODE_ROLE}/i-1", ME, False),
        (f"arn:aws:sts::123456789012:assumed-role/{NODE_ROLE}2/i-1", ME, False),
    ],
)
def test_whose_upload_it_is(world: World, initiator: str, owner: str, *, ours: bool) -> None:
    begin(world, "digits/a")

    def change(parsed: dict[str, Any], **_: Any) -> None:  # because the sandbox has a single account
        for each in parsed.get("Uploads", []):
            each["Initiator"], each["Owner"] = {"ID": initiator}, {"ID": "canonical-id"}

    with listening(world.clients.s3, "after-call.s3.ListMultipartUploads", change):
        found = find(world, owner=owner).found

    assert [each.key for each in found] == (["digits/a"] if ours else [])
    assert all(each.by_node is ("cluster-" in initiator) for each in found)


def test_a_missing_bucket_is_empty(world: World) -> None:
    receipt = world.down(world.prepare_down("s3://no-such-bucket/digits/"))

    assert receipt.unseen == ()
    assert render_receipt(receipt) == "cluster demo: nothing to delete\n"


def test_reports_a_bucket_that_cannot_be_listed(world: World) -> None:
    world.up(make_config(nodes=1))
    begin(world, "digits/a")
    world.sandbox.book.arm("s3-503 count=all")

    receipt = world.down(world.prepare_down(DIGITS))

    assert not world.resources()
    assert [unseen.kind for unseen in receipt.unseen] == [f"uploads to {DIGITS}"]
    assert "uploads" not in receipt.looked_for
    assert f"unseen   uploads to {DIGITS}: AWS says:" in render_receipt(receipt)
