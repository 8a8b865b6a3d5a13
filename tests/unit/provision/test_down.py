"""What `down` decides, what it leaves to others, and that it finds whatever is left."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import provision.down
import provision.resources.unfinished_uploads
from foundation.errors import AwsError
from foundation.progress import Event, silent
from provision.down import (
    Bill,
    Ending,
    ForgetFiles,
    Receipt,
    deleted_by,
    down,
    make_bill,
    plan_down,
    prepare_down,
    receipt_document,
    render_receipt,
)
from provision.model import ClusterState, KeyPair, SecurityGroup, Upload
from provision.plan import Plan
from provision.render import render_plan
from provision.resources.instance_profile import KIND as ROLE
from provision.resources.instance_profile import DeleteInstanceProfile, InstanceProfile, profile_resources
from provision.resources.instances import TerminateInstances, WaitForTerminated
from provision.resources.key_pair import DeleteKeyPair
from provision.resources.orphans import CancelSpotRequests, DeleteOrphans, SpotRequest
from provision.resources.placement_group import DeletePlacementGroup, PlacementGroup
from provision.resources.resource import Look, Resource, ResourceKind, Scope, Unseen
from provision.resources.security_group import DeleteSecurityGroup
from provision.resources.table import KINDS
from provision.resources.unfinished_uploads import IDLE_S, AbortUploads, Uploads, upload_resource
from provision_world import LAUNCHED_AT, NAME, READS, Killed, World, make_config, make_node
from sandbox_in_process import REGION

NODES = (make_node(0), make_node(1))
GROUP = SecurityGroup(group_id="sg-1", vpc_id="vpc-1", ours=True, ssh_from=(), ssh_open_to=(), open_to_members=True)
OTHERS_GROUP = SecurityGroup(
    group_id="sg-2", vpc_id="vpc-2", ours=False, ssh_from=(), ssh_open_to=(), open_to_members=True
)
PROFILE = InstanceProfile(
    name="cluster-us-east-1-demo",
    ours=True,
    has_role=True,
    has_profile=True,
    in_profile=True,
    policy_names=("cluster-data",),
)
TAGS = [{"Key": "cluster:name", "Value": NAME}]


def key(*, ours: bool = True) -> KeyPair:
    return KeyPair(key_name="cluster-demo", public_key=None, ours=ours)


def placement(*, ours: bool = True) -> PlacementGroup:
    return PlacementGroup(group_name="cluster-demo", ours=ours)


def state(**values: Any) -> ClusterState:
    whole: dict[str, Any] = {"nodes": NODES, "key_pair": key(), "security_groups": (GROUP,)}
    return ClusterState(name=NAME, **{**whole, **values})


def upload(idle_s: float, *, by_node: bool = False) -> Upload:
    return Upload(bucket="b", key="digits/it's", upload_id="u-1", idle_s=idle_s, by_node=by_node)


def kinds(plan: Plan) -> list[str]:
    return [type(step).__name__ for step in plan.steps]


def tagged(kind: str, tags: list[dict[str, str]] = TAGS) -> list[Any]:
    return [{"ResourceType": kind, "Tags": tags}]


# --- what is decided


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"nodes": (), "key_pair": None, "security_groups": ()}, []),
        ({}, ["TerminateInstances", "WaitForTerminated", "DeleteSecurityGroup", "DeleteKeyPair", "ForgetFiles"]),
        ({"nodes": ()}, ["DeleteSecurityGroup", "DeleteKeyPair", "ForgetFiles"]),
        (
            {"nodes": (), "ending": ("i-9",)},
            ["WaitForTerminated", "DeleteSecurityGroup", "DeleteKeyPair", "ForgetFiles"],
        ),
        ({"nodes": (), "security_groups": ()}, ["DeleteKeyPair", "ForgetFiles"]),
        ({"nodes": (), "key_pair": None}, ["DeleteSecurityGroup", "ForgetFiles"]),
        (
            {"nodes": (), "key_pair": None, "security_groups": (), "found": {"placement group": placement()}},
            ["DeletePlacementGroup", "ForgetFiles"],
        ),
        (
            {
                "nodes": (),
                "key_pair": key(ours=False),
                "security_groups": (OTHERS_GROUP,),
                "found": {"placement group": placement(ours=False)},
            },
            [],
        ),
    ],
)
def test_what_is_ours_goes(values: dict[str, Any], expected: list[str]) -> None:
    assert kinds(plan_down(state(**values))) == expected


def test_everything_goes_in_the_order_in_which_aws_lets_go_of_it() -> None:
    request = SpotRequest(request_id="sir-1", state="open", instance_id=None)
    dead = upload(IDLE_S)

    found = {
        "spot request": (request,),
        "placement group": placement(),
        "role and instance profile": PROFILE,
        "upload": Uploads(found=(dead,)),
        "volume": ("vol-1",),
        "network interface": ("eni-1",),
    }
    whole = plan_down(state(found=found, ending=("i-9",)), local_files=True)

    assert whole.steps == (
        CancelSpotRequests(request_ids=("sir-1",)),
        TerminateInstances(nodes=NODES),
        WaitForTerminated(instance_ids=("i-0", "i-1", "i-9")),
        DeleteInstanceProfile(profile=PROFILE),
        DeletePlacementGroup(group_name="cluster-demo"),
        DeleteOrphans(kind="network interface", ids=("eni-1",)),
        DeleteSecurityGroup(group_id="sg-1"),
        DeleteKeyPair(key_name="cluster-demo"),
        DeleteOrphans(kind="volume", ids=("vol-1",)),
        AbortUploads(uploads=(dead,)),
        ForgetFiles(),
    )
    assert [resource.kind for resource in deleted_by(whole)] == [
        "spot request",
        "instance",
        "instance",
        "instance profile",
        "role",
        "placement group",
        "network interface",
        "security group",
        "key pair",
        "volume",
        "upload",
        "local files",
    ]


def test_the_plan_can_be_read() -> None:
    text = render_plan(plan_down(state(ending=("i-9",))))

    assert "1. terminate 2 nodes (0-1)\n      node-0  i-0  running\n      node-1  i-1  running\n" in text
    assert "2. wait until 3 instances have ended\n   3. delete security group sg-1\n" in text


def test_files_alone_are_forgotten() -> None:
    assert plan_down(ClusterState(name=NAME), local_files=True).steps == (ForgetFiles(),)


@pytest.mark.parametrize(
    ("request_state", "instance_id", "cancelled"),
    [
        ("open", None, True),
        ("active", "i-0", False),  # ends with its instance
        ("active", "i-9", False),  # which is ending
        ("active", "i-7", True),  # an instance that is not the cluster's, or not there
        ("disabled", "i-0", True),
    ],
)
def test_spot_requests_that_could_still_launch(request_state: str, instance_id: str | None, *, cancelled: bool) -> None:
    request = SpotRequest(request_id="sir-1", state=request_state, instance_id=instance_id)
    steps = plan_down(state(found={"spot request": (request,)}, ending=("i-9",))).steps

    assert (steps[0] == CancelSpotRequests(request_ids=("sir-1",))) is cancelled


@pytest.mark.parametrize(
    ("found", "aborted"),
    [(upload(IDLE_S), True), (upload(IDLE_S - 1), False), (upload(0.0, by_node=True), True)],
)
def test_uploads_that_somebody_may_be_at_are_left_alone(found: Upload, *, aborted: bool) -> None:
    steps = plan_down(ClusterState(name=NAME, found={"upload": Uploads(found=(found,))})).steps

    assert steps == ((AbortUploads(uploads=(found,)), ForgetFiles()) if aborted else ())


def test_a_role_that_is_not_ours_stays() -> None:
    others = InstanceProfile(name=PROFILE.name, ours=False, has_role=True, has_profile=True, in_profile=True)

    assert not plan_down(ClusterState(name=NAME, found={"role and instance profile": others}))
    assert profile_resources(others) == ()


# --- the receipt

ON_DEMAND = ("on-demand", "c5.xlarge", "us-east-1a")
SPOT = ("spot", "c5.xlarge", "us-east-1a")


@pytest.mark.parametrize(
    ("nodes", "prices", "expected"),
    [
        (NODES, {ON_DEMAND: 0.17}, Bill(node_hours=4.0, usd=0.68)),
        (NODES, {ON_DEMAND: None}, Bill(node_hours=4.0, usd=None)),
        (NODES, {}, Bill(node_hours=4.0, usd=None)),
        (
            (make_node(0), make_node(1, market="spot")),
            {ON_DEMAND: 0.17, SPOT: 0.05},
            Bill(node_hours=4.0, usd=0.44, on_spot=True),
        ),
        (
            (
                make_node(
                    0, state="stopped", ran=f"0,{int(LAUNCHED_AT.timestamp())},{int(LAUNCHED_AT.timestamp()) + 1800}"
                ),
            ),
            {ON_DEMAND: 0.2},
            Bill(node_hours=0.5, usd=0.1),
        ),
    ],
)
def test_the_bill(nodes: tuple[Any, ...], prices: dict[Any, float | None], expected: Bill) -> None:
    bill = make_bill([plan_down(state(nodes=nodes))], prices=prices, now=LAUNCHED_AT + timedelta(hours=2))

    assert (bill.node_hours, bill.on_spot, bill.uncounted) == (expected.node_hours, expected.on_spot, ())
    assert bill.usd == (None if expected.usd is None else pytest.approx(expected.usd))


def test_the_bill_says_which_instances_it_knows_nothing_of() -> None:
    bill = make_bill([plan_down(state(ending=("i-9",)))], prices={ON_DEMAND: 1.0}, now=LAUNCHED_AT)

    assert bill.uncounted == ("i-9",)
    text = render_receipt(Receipt(cluster=NAME, deleted=deleted_by(plan_down(state())), bill=bill))
    assert "not counted: 1 x instance that had ended, or was ending, before" in " ".join(text.split())


def test_the_bill_says_what_an_interrupted_down_and_a_resize_have_ended(world: World) -> None:
    """Their hours are in no bill: a receipt of 0 hours and $0 alone would be taken for what the cluster cost."""
    world.up(make_config(nodes=2))
    gone = tuple(sorted(node.instance_id for node in world.describe().nodes))
    world.clients.ec2.terminate_instances(InstanceIds=list(gone))

    bill = world.down().bill

    assert (bill.node_hours, bill.usd, bill.uncounted) == (0.0, 0.0, gone)


def test_the_receipt_of_a_cluster_that_is_gone() -> None:
    receipt = Receipt(
        cluster=NAME,
        deleted=deleted_by(plan_down(state(nodes=tuple(make_node(index) for index in range(10))))),
        looked_for=("instances", "volumes"),
        unseen=(Unseen(kind=ROLE, why="AWS says: no (AccessDenied)"),),
        in_progress=(upload(30.0),),
        bill=Bill(node_hours=2.5, usd=1.25, on_spot=True),
    )

    assert render_receipt(receipt) == (
        "cluster demo is gone\n"
        "  deleted  10 x instance: i-0, i-1, i-2, i-3, i-4, i-5, i-6, i-7 and 2 more\n"
        "  deleted  1 x security group: sg-1\n"
        "  deleted  1 x key pair: cluster-demo\n"
        "  deleted  1 x local files: private key, known hosts\n"
        "  left     nothing; looked for instances, volumes\n"
        "  spared   1 x upload to s3://b/, younger than 15 minutes: a data put may be at\n"
        "           work; `cluster down` aborts them later\n"
        "  unseen   role and instance profile: AWS says: no (AccessDenied)\n"
        "  ran      2.50 node hours, about $1.25, spot at its present price (disks and\n"
        "           traffic not counted)\n"
    )
    assert "; simulated)" in render_receipt(receipt, price_note="simulated")


@pytest.mark.parametrize(("usd", "shown"), [(0.0, "$0.00"), (0.0017, "$0.0017"), (0.1, "$0.10"), (None, "unknown")])
def test_a_small_cost_is_not_shown_as_none(usd: float | None, shown: str) -> None:
    receipt = Receipt(cluster=NAME, deleted=deleted_by(plan_down(state())), bill=Bill(node_hours=0.01, usd=usd))
    assert shown in render_receipt(receipt).splitlines()[-1]


def test_the_receipt_says_what_is_left_and_what_deletes_it() -> None:
    receipt = Receipt(
        cluster=NAME,
        leftovers=(Resource(kind="volume", resource_id="vol-1", deletion="aws ec2 delete-volume --volume-id vol-1"),),
        bill=Bill(node_hours=1.0, usd=None),
    )

    assert render_receipt(receipt) == (
        "cluster demo: NOT all is gone\n"
        "  deleted  nothing\n"
        "  left     1 x volume: vol-1\n"
        "           if `cluster down` does not delete them in a minute, this does:\n"
        "           aws ec2 delete-volume --volume-id vol-1\n"
    )


def test_the_receipt_as_json() -> None:
    receipt = Receipt(
        cluster=NAME,
        deleted=(Resource(kind="instance", resource_id="i-1"),),
        leftovers=(upload_resource(upload(IDLE_S)),),
        looked_for=("instances",),
        unseen=(Unseen(kind=ROLE, why="no"),),
        in_progress=(upload(30.4),),
        bill=Bill(node_hours=0.33333333, usd=None),
    )

    assert json.loads(json.dumps(receipt_document(receipt))) == {
        "cluster": "demo",
        "gone": False,
        "deleted": [{"kind": "instance", "id": "i-1"}],
        "left": [
            {
                "kind": "upload",
                "id": "s3://b/digits/it's",
                "deletion": "aws s3api abort-multipart-upload --bucket b --key 'digits/it'\"'\"'s' --upload-id u-1",
            }
        ],
        "looked_for": ["instances"],
        "unseen": [{"kind": ROLE, "why": "no"}],
        "uploads_in_progress": [{"url": "s3://b/digits/it's", "upload_id": "u-1", "idle_s": 30}],
        "node_hours": 0.3333,
        "cost_usd": None,
        "cost_is_at_present_spot_price": False,
        "uncounted_instances": [],
    }


def test_only_what_was_left_is_looked_at_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.up(make_config(nodes=1))
    ending = prepare_down(world.clients, name=NAME, files=world.files, report=silent)
    looked: list[str] = []
    left = [(Resource(kind="volume", resource_id="vol-1"),), ()]

    def volumes(_: Scope) -> Look:
        looked.append("volumes")
        return Look(looked_for=("volumes",), left=left.pop(0))

    def instances(_: Scope) -> Look:
        looked.append("instances")
        return Look(looked_for=("instances",))

    kinds = (ResourceKind(kind="volume", look=volumes), ResourceKind(kind="instance", look=instances))
    monkeypatch.setattr(provision.down, "KINDS", kinds)

    assert down(ending, clients=world.clients, files=world.files, report=silent).leftovers == ()
    assert looked == ["instances", "volumes", "volumes"]


def find_left(world: World) -> list[Resource]:
    """All that carries the cluster's tag, by a fresh look."""
    scope = Scope(clients=world.clients, name=NAME)
    return [resource for kind in reversed(KINDS) for resource in kind.look(scope).left]


# --- against an EC2


def run_other(world: World, **asked: Any) -> str:
    """An instance that is not the cluster's, whatever else of it is."""
    image = next(iter(world.sandbox.backend.amis))
    made = world.clients.ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, InstanceType="c5.large", **asked)
    return str(made["Instances"][0]["InstanceId"])


def make_one_of_each(world: World, tags: list[dict[str, str]]) -> None:
    """Everything that may carry a cluster's tag and does not belong to an instance of it."""
    ec2 = world.clients.ec2
    [subnet, *_] = ec2.describe_subnets()["Subnets"]
    ec2.create_volume(AvailabilityZone="us-east-1a", Size=8, TagSpecifications=tagged("volume", tags))
    ec2.create_network_interface(SubnetId=subnet["SubnetId"], TagSpecifications=tagged("network-interface", tags))
    ec2.allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip", tags))
    ec2.create_security_group(
        GroupName="cluster-demo",
        Description="d",
        VpcId=subnet["VpcId"],
        TagSpecifications=tagged("security-group", tags),
    )
    ec2.create_placement_group(
        GroupName="cluster-demo", Strategy="cluster", TagSpecifications=tagged("placement-group", tags)
    )
    ec2.create_key_pair(KeyName="cluster-demo", TagSpecifications=tagged("key-pair", tags))
    options = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
    run_other(world, InstanceMarketOptions=options, TagSpecifications=tagged("spot-instances-request", tags))


def test_every_kind_of_thing_is_found(world: World) -> None:
    make_one_of_each(world, TAGS)
    run_other(world, TagSpecifications=tagged("instance"))

    found = find_left(world)

    assert [resource.kind for resource in found] == [
        "spot request",
        "instance",
        "placement group",
        "network interface",
        "security group",
        "key pair",
        "address",
        "volume",
    ]
    for resource in found:
        assert resource.deletion.startswith("aws ec2 ")
        assert resource.deletion.endswith(f" {resource.resource_id} --region {REGION}")


def test_all_of_it_goes_but_what_the_program_never_makes(world: World) -> None:
    make_one_of_each(world, TAGS)

    receipt = world.down()

    assert [resource.kind for resource in receipt.leftovers] == ["address"]
    assert "aws ec2 release-address --allocation-id eipalloc-" in render_receipt(receipt)
    assert tuple(find_left(world)) == receipt.leftovers
    world.calls.made.clear()
    assert world.down().leftovers == receipt.leftovers  # looked at, though there was nothing to do
    assert not world.calls.mutating()


@pytest.mark.parametrize("tags", [[{"Key": "cluster:name", "Value": "demo2"}], [{"Key": "Name", "Value": NAME}]])
def test_what_is_not_ours_is_neither_touched_nor_reported(world: World, tags: list[dict[str, str]]) -> None:
    make_one_of_each(world, tags)
    before = world.resources()
    world.calls.made.clear()

    assert render_receipt(world.down()) == "cluster demo: nothing is there\n"
    assert world.resources() == before
    assert not world.calls.mutating()


def test_stale_spot_requests_are_cancelled_before_the_instances_end(world: World) -> None:
    world.up(make_config(market="spot"))
    options = {"MarketType": "spot"}
    run_other(world, InstanceMarketOptions=options, TagSpecifications=tagged("spot-instances-request"))
    world.calls.made.clear()

    receipt = world.down()

    assert receipt.leftovers == ()
    assert receipt.bill.on_spot
    assert list(world.calls.mutating())[:2] == ["CancelSpotInstanceRequests", "TerminateInstances"]
    assert world.calls.mutating()["CancelSpotInstanceRequests"] == 1


def test_a_spot_request_that_ec2_has_forgotten_keeps_no_other_from_being_cancelled(world: World) -> None:
    options = {"MarketType": "spot"}
    for _ in range(2):
        run_other(world, InstanceMarketOptions=options, TagSpecifications=tagged("spot-instances-request"))
    ending = prepare_down(world.clients, name=NAME, files=world.files, report=silent)
    requests = world.sandbox.backend.spot_instance_requests
    requests.pop(next(iter(requests)))

    receipt = down(ending, clients=world.clients, files=world.files, report=silent)

    assert receipt.leftovers == ()
    assert [request.state for request in requests.values()] == ["cancelled"]
    requests.clear()
    assert down(ending, clients=world.clients, files=world.files, report=silent).leftovers == ()


def test_a_disk_that_outlives_its_instance_is_deleted_in_the_same_run(world: World) -> None:
    [node] = world.up(make_config(nodes=1)).nodes
    kept = {"DeviceName": "/dev/sda1", "Ebs": {"DeleteOnTermination": False}}
    world.clients.ec2.modify_instance_attribute(InstanceId=node.instance_id, BlockDeviceMappings=[kept])
    world.sandbox.backend.get_instance(node.instance_id).block_device_mapping["/dev/sda1"].delete_on_termination = False
    heard: list[Event] = []
    ending = prepare_down(world.clients, name=NAME, files=world.files, report=silent)

    receipt = down(ending, clients=world.clients, files=world.files, report=heard.append)

    assert receipt.leftovers == ()
    assert not world.resources()
    assert [resource.resource_id for resource in receipt.deleted if resource.kind == "volume"] == list(node.volume_ids)
    assert "more of the cluster has turned up" in [event.what for event in heard]
    assert not world.files.root.exists()


def test_a_key_pair_made_a_moment_ago_goes_too(world: World, tmp_path: Path) -> None:
    """`up` is interrupted, and `down` is quicker than EC2's consistency: listed already, and not known to the rest."""
    world.reset(tmp_path / "lagging", consistency_delay_s=8.0)
    tagged: Any = {"ResourceType": "key-pair", "Tags": TAGS}
    world.clients.ec2.import_key_pair(
        KeyName=f"cluster-{NAME}", PublicKeyMaterial=world.files.make_key().encode(), TagSpecifications=[tagged]
    )

    assert [each.kind for each in world.down().deleted] == ["key pair", "local files"]
    assert not world.resources()


def test_what_is_gone_already_is_no_error(world: World) -> None:
    make_one_of_each(world, TAGS)
    ending = prepare_down(world.clients, name=NAME, files=world.files, report=silent)
    world.down()

    again = down(ending, clients=world.clients, files=world.files, report=silent)

    assert [resource.kind for resource in again.leftovers] == ["address"]


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_a_rule_of_another_group_that_names_ours_is_named(world: World, direction: str) -> None:
    state = world.up(make_config(nodes=1))
    ec2 = world.clients.ec2
    group = state.security_group
    assert group is not None
    other = ec2.create_security_group(GroupName="web", Description="somebody's", VpcId=group.vpc_id)["GroupId"]
    rule: Any = [{"IpProtocol": "tcp", "FromPort": 80, "ToPort": 80, "UserIdGroupPairs": [{"GroupId": group.group_id}]}]
    authorize = getattr(ec2, f"authorize_security_group_{direction}")
    authorize(GroupId=other, IpPermissions=rule)

    with pytest.raises(AwsError, match=rf"{group.group_id} cannot be deleted .*: {other} \(web\)") as caught:
        world.down()

    assert f"describe-security-group-rules --filters Name=group-id,Values={other}" in str(caught.value.hint)
    assert not world.describe().nodes  # what costs money is gone
    getattr(ec2, f"revoke_security_group_{direction}")(GroupId=other, IpPermissions=rule)
    assert world.down().leftovers == ()
    assert world.resources() == {"groups": 1}


def test_an_instance_of_somebody_elses_in_our_group_is_named(world: World) -> None:
    group = world.up(make_config(nodes=1)).security_group
    assert group is not None
    stranger = run_other(world, SecurityGroupIds=[group.group_id])

    with pytest.raises(AwsError, match=f"{group.group_id} is still in use after 180 s: eni-.* of {stranger}") as caught:
        world.down()
    assert caught.value.hint == "take those out of the group if they are not this cluster's, then: cluster down"

    assert world.sandbox.backend.get_instance(stranger).state == "running"
    events: list[Event] = []
    ending = prepare_down(world.clients, name=NAME, files=world.files, report=silent)
    with pytest.raises(AwsError):
        down(ending, clients=world.clients, files=world.files, report=events.append)
    waited_for = [event.what for event in events if event.kind == "info"]
    assert len(waited_for) == 1  # said when the wait begins, and not at each look
    assert re.fullmatch(f"still in use by eni-.* of {stranger}", waited_for[0])
    world.clients.ec2.terminate_instances(InstanceIds=[stranger])
    assert world.down().leftovers == ()


def test_the_receipt_has_hours_and_cost(world: World) -> None:
    world.up(make_config())

    receipt = world.down()

    assert receipt.bill.usd is not None
    assert receipt.bill.usd == pytest.approx(receipt.bill.node_hours * 0.17)
    assert receipt.looked_for == (
        "spot requests",
        "instances",
        "roles",
        "instance profiles",
        "placement groups",
        "network interfaces",
        "security groups",
        "key pairs",
        "addresses",
        "volumes",
    )


@pytest.mark.parametrize(
    "fault", ["unauthorized service=pricing count=all", "internal-error service=pricing count=all"]
)
def test_no_price_is_no_error(world: World, fault: str) -> None:
    world.up(make_config(nodes=1))
    world.sandbox.book.arm(fault)

    receipt = world.down()

    assert receipt.leftovers == ()
    assert "the price is unknown" in render_receipt(receipt)


def test_who_may_not_look_into_iam_ends_the_cluster_and_reads_so(world: World) -> None:
    world.up(make_config(nodes=1))
    world.sandbox.book.arm("unauthorized service=iam count=all")

    receipt = world.down()

    assert not world.resources()
    assert receipt.leftovers == ()
    assert "roles" not in receipt.looked_for
    [unseen] = receipt.unseen
    assert unseen.kind == ROLE
    assert "AccessDenied" in unseen.why


def test_the_role_goes_too(world: World) -> None:
    world.up(make_config(nodes=1, instance_profile="auto"))

    receipt = world.down()

    assert {"role", "instance profile"} <= {resource.kind for resource in receipt.deleted}
    assert not world.clients.iam.list_roles()["Roles"]
    assert not world.clients.iam.list_instance_profiles()["InstanceProfiles"]
    assert receipt.unseen == ()


# --- uploads


@pytest.fixture
def bucket(world: World) -> str:
    world.clients.s3.create_bucket(Bucket="records")
    return "records"


def begin(world: World, key: str, *, parts: int = 0) -> str:
    s3 = world.clients.s3
    upload_id = str(s3.create_multipart_upload(Bucket="records", Key=key)["UploadId"])
    for number in range(1, parts + 1):
        s3.upload_part(Bucket="records", Key=key, UploadId=upload_id, PartNumber=number, Body=b"x")
    return upload_id


def listed(world: World) -> list[str]:
    return [each["Key"] for each in world.clients.s3.list_multipart_uploads(Bucket="records").get("Uploads", [])]


def end(world: World, *urls: str) -> tuple[Ending, Receipt]:
    ending = prepare_down(world.clients, name=NAME, files=world.files, report=silent, urls=urls)
    return ending, down(ending, clients=world.clients, files=world.files, report=silent)


def find(
    world: World, *urls: str, after_s: float = 0.0, owner: str | None = None
) -> provision.resources.unfinished_uploads.Uploads:
    return provision.resources.unfinished_uploads.find_uploads(
        world.clients.s3,
        urls=urls,
        owner=owner or world.clients.sts.get_caller_identity()["Arn"],
        now=datetime.now(UTC) + timedelta(seconds=after_s),
    )


def test_interrupted_uploads_below_the_folders_are_aborted(
    world: World, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(world, "digits/a", parts=2)
    begin(world, "results/b")
    begin(world, "elsewhere/c")
    begin(world, "digits-too/d")
    monkeypatch.setattr(provision.resources.unfinished_uploads, "IDLE_S", 0.0)

    ending, receipt = end(world, f"s3://{bucket}/digits/", f"s3://{bucket}/results")

    assert kinds(ending.plan) == ["AbortUploads", "ForgetFiles"]
    assert listed(world) == ["digits-too/d", "elsewhere/c"]
    assert receipt.leftovers == ()
    assert receipt.looked_for[-1] == "uploads"
    assert [resource.resource_id for resource in receipt.deleted] == [
        "s3://records/digits/a",
        "s3://records/results/b",
    ]


def test_an_upload_that_may_be_under_way_is_left_alone_and_reported(world: World, bucket: str) -> None:
    begin(world, "digits/a", parts=1)

    ending, receipt = end(world, f"s3://{bucket}/digits/")

    assert not ending
    assert listed(world) == ["digits/a"]
    assert receipt.leftovers == ()
    assert [each.key for each in receipt.in_progress] == ["digits/a"]
    assert "1 x upload to s3://records/, younger than 15 minutes" in render_receipt(receipt)


def test_the_newest_part_counts(world: World, bucket: str) -> None:
    begin(world, "digits/a", parts=1)

    [young] = find(world, f"s3://{bucket}/", after_s=60.0).found
    [old] = find(world, f"s3://{bucket}/", after_s=IDLE_S + 60.0).found

    assert 55.0 < young.idle_s < 70.0
    assert IDLE_S + 50.0 < old.idle_s < IDLE_S + 70.0


def test_all_pages_are_read(world: World, bucket: str) -> None:
    keys = [f"digits/{number}" for number in range(5)]
    for each in keys:
        begin(world, each)

    def shorten(params: dict[str, Any], **_: Any) -> None:
        params["MaxUploads"] = 2

    events = world.clients.s3.meta.events
    events.register("before-parameter-build.s3.ListMultipartUploads", shorten)
    world.calls.made.clear()
    try:
        assert [each.key for each in find(world, f"s3://{bucket}/digits/").found] == keys
    finally:
        events.unregister("before-parameter-build.s3.ListMultipartUploads", shorten)
    assert world.calls.made.count("ListMultipartUploads") == 3


def test_uploads_that_others_began_are_not_ours(world: World, bucket: str) -> None:
    begin(world, "digits/a")

    assert find(world, f"s3://{bucket}/", owner="arn:aws:iam::123456789012:user/somebody").found == ()


ME = "arn:aws:sts::123456789012:assumed-role/admin/ada"


@pytest.mark.parametrize(
    ("initiator", "owner", "ours"),
    [
        (ME, ME, True),
        ("", ME, True),  # S3 does not say
        ("arn:aws:sts::123456789012:assumed-role/admin/eve", ME, False),
        (
            "arn:aws:sts::123456789012:assumed-role/admin/botocore-session-1700000000",
            "arn:aws:sts::123456789012:assumed-role/admin/botocore-session-1800000000",
            True,
        ),
        (
            "arn:aws:sts::210987654321:assumed-role/admin/botocore-session-1700000000",
            "arn:aws:sts::123456789012:assumed-role/admin/botocore-session-1800000000",
            False,
        ),
        ("canonical-id", "arn:aws:iam::123456789012:root", True),
        ("another-id", "arn:aws:iam::123456789012:root", False),
        ("canonical-id", ME, False),
        ("arn:aws:sts::123456789012:assumed-role/cluster-us-east-1-demo/i-1", ME, True),
        ("arn:aws:sts::210987654321:assumed-role/cluster-us-east-1-demo/i-1", ME, False),
        ("arn:aws:sts::123456789012:assumed-role/cluster-us-east-1-demo2/i-1", ME, False),
    ],
)
def test_who_began_an_upload(world: World, bucket: str, initiator: str, owner: str, *, ours: bool) -> None:
    begin(world, "digits/a")

    def say(parsed: dict[str, Any], **_: Any) -> None:  # who: the sandbox has one account
        for each in parsed.get("Uploads", []):
            each["Initiator"], each["Owner"] = {"ID": initiator}, {"ID": "canonical-id"}

    events = world.clients.s3.meta.events
    events.register("after-call.s3.ListMultipartUploads", say)
    try:
        found = provision.resources.unfinished_uploads.find_uploads(
            world.clients.s3,
            urls=[f"s3://{bucket}/"],
            owner=owner,
            now=datetime.now(UTC),
            node_role="cluster-us-east-1-demo",
        ).found
    finally:
        events.unregister("after-call.s3.ListMultipartUploads", say)

    assert [each.key for each in found] == (["digits/a"] if ours else [])
    assert all(each.by_node is ("cluster-" in initiator) for each in found)


def test_a_bucket_that_is_not_there_holds_nothing(world: World) -> None:
    _, receipt = end(world, "s3://nobody-has-made-this/digits/")

    assert receipt.unseen == ()
    assert render_receipt(receipt) == "cluster demo: nothing is there\n"


def test_a_bucket_that_cannot_be_listed_is_reported(world: World, bucket: str) -> None:
    world.up(make_config(nodes=1))
    begin(world, "digits/a")
    world.sandbox.book.arm("s3-503 count=all")

    _, receipt = end(world, f"s3://{bucket}/digits/")

    assert not world.resources()
    [unseen] = receipt.unseen
    assert unseen.kind == "uploads to s3://records/digits/"
    assert "uploads" not in receipt.looked_for
    assert "unseen   uploads to s3://records/digits/: AWS says:" in render_receipt(receipt)


def test_uploads_that_end_meanwhile_are_no_error(world: World, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(world, "digits/a")
    monkeypatch.setattr(provision.resources.unfinished_uploads, "IDLE_S", 0.0)
    ending = prepare_down(world.clients, name=NAME, files=world.files, report=silent, urls=[f"s3://{bucket}/digits/"])
    end(world, f"s3://{bucket}/digits/")

    assert down(ending, clients=world.clients, files=world.files, report=silent).leftovers == ()


def test_killed_at_every_deletion_and_run_again(
    world: World, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/unit/provision/test_crashes.py has the points of a plain cluster; here are those of everything else."""
    monkeypatch.setattr(provision.resources.unfinished_uploads, "IDLE_S", 0.0)
    url = f"s3://{bucket}/digits/"

    def make() -> None:
        make_one_of_each(world, TAGS)
        for each in ("digits/a", "digits/b"):
            begin(world, each)
        world.calls.points = 0
        world.calls.made.clear()

    make()
    end(world, url)
    deletions = [point for point, name in enumerate(world.calls.made) if not name.startswith(READS)]
    assert len(deletions) == 8
    for point in deletions:
        world.reset(tmp_path / f"again-{point}")
        world.clients.s3.create_bucket(Bucket=bucket)
        make()
        with world.killed_at(point, before=False), pytest.raises(Killed):
            end(world, url)

        _, receipt = end(world, url)

        assert [resource.kind for resource in receipt.leftovers] == ["address"], point
        assert listed(world) == [], point
        assert not world.files.root.exists(), point
