import json
from typing import Any

from cluster.views.layout import wrap
from provision.cost.bill import ClusterBill
from provision.down import Receipt, add_receipts, deleted_by, plan_down, receipt_document, render_receipt
from provision.resources.instance_profile import KIND as ROLE
from provision.resources.resource import KeptVolume, Resource, Unseen
from provision_world import NAME, make_bill, make_node, make_state


def bill(*, node_hours: float, usd: float | None) -> ClusterBill:
    ran: Any = {"instance_type": "c5.xlarge", "launched_at": 0.0, "ran_s": node_hours * 3600, "usd_per_hour": 0.0}
    return ClusterBill(launched_at=0.0, ended_at=0.0, nodes=(make_bill("i-0", instance_usd=usd, **ran),), volumes=())


def test_the_receipt_of_a_deleted_cluster() -> None:
    receipt = Receipt(
        cluster=NAME,
        deleted=deleted_by(plan_down(make_state(*map(make_node, range(10))))),
        looked_for=("instances", "volumes"),
        unseen=(Unseen(kind=ROLE, why="AWS says: no (AccessDenied)"),),
        bill=bill(node_hours=2.5, usd=1.25),
    )
    assert render_receipt(receipt) == (
        "cluster demo is deleted\n"
        "  deleted  10 x instance: i-0, i-1, i-2, i-3, i-4, i-5, i-6, i-7 and 2 more\n"
        "  deleted  1 x security group: sg-1\n"
        "  deleted  1 x key pair: cluster-demo\n"
        "  deleted  1 x local files: private key, known hosts\n"
        "  left     nothing; looked for instances, volumes\n"
        "  unseen   role and instance profile: AWS says: no (AccessDenied)\n"
        "  ran      2.50 node hours, $1.25 (with disks, without traffic)\n"
    )


def test_a_small_cost_and_leftovers() -> None:
    """A small cost is not rounded to zero. Leftovers have the command that deletes them."""
    deletion = "aws ec2 delete-volume --volume-id vol-1"
    left = Resource(kind="volume", resource_id="vol-1", deletion=deletion)
    assert render_receipt(Receipt(cluster=NAME, leftovers=(left,), bill=bill(node_hours=0.02, usd=0.0017))) == (
        "cluster demo: NOT everything is deleted\n"
        "  deleted  nothing\n"
        "  left     1 x volume: vol-1\n"
        "           run `cluster down` again in a minute, or delete them yourself:\n"
        f"           {deletion}\n"
        "  ran      0.02 node hours, $0.0017 (with disks, without traffic)\n"
    )
    unpriced = Receipt(cluster=NAME, leftovers=(left,), bill=bill(node_hours=0.02, usd=None))
    assert "0.02 node hours, the price is unknown" in render_receipt(unpriced)


def test_the_receipt_as_json() -> None:
    receipt = Receipt(
        cluster=NAME,
        deleted=(Resource(kind="instance", resource_id="i-1"),),
        leftovers=(Resource(kind="volume", resource_id="vol-1", deletion="aws ec2 delete-volume"),),
        looked_for=("instances",),
        unseen=(Unseen(kind=ROLE, why="no"),),
        images=("mine",),
        bill=bill(node_hours=0.33333333, usd=None),
    )
    assert json.loads(json.dumps(receipt_document(receipt))) == {
        "cluster": "demo",
        "gone": False,
        "deleted": [{"kind": "instance", "id": "i-1"}],
        "left": [{"kind": "volume", "id": "vol-1", "deletion": "aws ec2 delete-volume"}],
        "looked_for": ["instances"],
        "unseen": [{"kind": ROLE, "why": "no"}],
        "kept": [],
        "images": ["mine"],
        "lease_ended": None,
        "node_hours": 0.3333,
        "cost_usd": None,
    }


def test_one_receipt_for_two_regions_has_the_images_of_both() -> None:
    assert add_receipts(Receipt(cluster=NAME, images=("a",)), Receipt(cluster=NAME, images=("b",))).images == ("a", "b")


KEPT = KeptVolume(
    volume_id="vol-0123456789abcdef0",
    zone="us-east-1b",
    size_gib=100,
    deletion="aws ec2 delete-volume --volume-id vol-0123456789abcdef0 --region us-east-1",
)


def test_a_kept_volume_is_shown_with_its_cost_and_how_to_delete_it() -> None:
    receipt = Receipt(cluster=NAME, looked_for=("instances",), kept=(KEPT,), volume_usd_per_gib_month=0.08)
    text = render_receipt(receipt, price_note="simulated")
    for columns in (40, 80):
        shown = wrap(text, columns).splitlines()
        assert all(len(line) <= columns or "delete-volume" in line for line in shown)
        assert {line[:11].strip() for line in shown[1:]} <= {"deleted", "left", "kept", ""}, "one indent"
    assert " ".join(text.split()) == (
        "cluster demo: nothing to delete kept shared volume vol-0123456789abcdef0, 100 GiB in us-east-1b: $8.00 per "
        "month (simulated) until you delete it; the next `cluster up` uses it again. To delete it and what is on it: "
        "aws ec2 delete-volume --volume-id vol-0123456789abcdef0 --region us-east-1"
    )
    [kept] = receipt_document(receipt)["kept"]
    assert (kept["id"], kept["usd_per_month"], kept["deletion"]) == (KEPT.volume_id, 8.0, KEPT.deletion)
    assert "an unknown price per month" in " ".join(render_receipt(Receipt(cluster=NAME, kept=(KEPT,))).split())
