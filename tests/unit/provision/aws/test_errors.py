"""Every error code of AWS that this program knows, each with what is done about it and with what is said.

ROWS is the table; each row's tests stand below it in the same order, and the last test sees that none is missing. The
answers are those of EC2 on the wire, so that botocore's retries are part of what is shown.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from foundation.errors import AwsError, ClusterError, ConfigError, CredentialsError, QuotaError
from foundation.progress import Event, silent
from provision.aws.clients import ATTEMPTS
from provision.model import TAG_NAME, resource_name
from provision.resources.launch import LAUNCH_ATTEMPTS
from provision.up import up
from provision_world import NAME, World, complete, make_config
from refusing_wire import Wire, wired

ROWS = (
    # codes, reaction
    (("InsufficientInstanceCapacity",), "next zone, then type, then market; bounded; delete the partial set"),
    (("Unsupported",), "type not in this zone: skip it"),
    (("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded"), "stop; show needed, in use, limit, the quota's code"),
    (("RequestLimitExceeded", "Throttling", "InternalError", "Unavailable"), "jittered back-off, same ClientToken"),
    (
        ("InvalidInstanceID.NotFound", "InvalidGroup.NotFound"),
        "just after creating: eventual consistency, retry up to 60 s; on `down` already gone",
    ),
    (
        ("InvalidGroup.Duplicate", "InvalidKeyPair.Duplicate", "InvalidPermission.Duplicate"),
        "ours only if tag (and fingerprint) match",
    ),
    (("DependencyViolation",), "wait for the network interfaces, name the one that blocks"),
    (("InvalidAMIID.NotFound", "InvalidKeyPair.NotFound"), "wrong region or name: say so, point at the TOML key"),
    (("UnauthorizedOperation",), "name the missing action; found before spending, by DryRun"),
    (("OptInRequired", "PendingVerification"), "the account's state: explain, no retry"),
)
GROUP = resource_name(NAME)
BUSY = {"RequestLimitExceeded": 503, "Throttling": 400, "InternalError": 500, "Unavailable": 503}
"""With the HTTP status that EC2 gives."""
SHOWN: set[str] = set()

Test = TypeVar("Test", bound=Callable[..., None])


def row(*codes: str) -> Callable[[Test], Test]:
    """The test is about these codes, and gets each as `code`."""
    SHOWN.update(codes)
    return pytest.mark.parametrize("code", codes)


@pytest.fixture
def wire(world: World) -> Iterator[Wire]:
    with wired(world) as between:
        yield between


def words(code: str) -> str:
    """How a message begins."""
    return f"AWS says: AWS's words on {code}. ({code}, while "


def refused(world: World, **settings: Any) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        world.up(make_config(**settings))
    return caught.value


def refused_later(world: World, make: Callable[[], object]) -> ClusterError:
    """What `up` says when something was made between its looking and its doing."""
    plan = world.prepare(make_config())
    make()
    with pytest.raises(ClusterError) as caught:
        up(plan, clients=world.clients, files=world.files, report=silent)
    return caught.value


def ours() -> list[Any]:
    return [{"Key": TAG_NAME, "Value": NAME}]


# --- InsufficientInstanceCapacity -------------------------------------------------------------------------------------


@row("InsufficientInstanceCapacity")
def test_no_room_next_zone_then_type_then_market(world: World, wire: Wire, code: str) -> None:
    world.sandbox.book.arm("capacity market=spot")
    world.sandbox.book.arm("capacity market=on-demand type=c5.xlarge")
    events: list[Event] = []
    world.up(make_config(instance_types=["m5.xlarge"], market=["spot", "on-demand"]), report=events.append)

    tried = [
        (call.get("InstanceMarketOptions.MarketType", "on-demand"), call["InstanceType"])
        for call in wire.calls("RunInstances")
    ]
    zones = tried.count(("spot", "c5.xlarge"))
    assert zones > 1
    assert tried == [
        *[("spot", "c5.xlarge")] * zones,
        *[("spot", "m5.xlarge")] * zones,
        *[("on-demand", "c5.xlarge")] * zones,
        ("on-demand", "m5.xlarge"),
    ]
    assert len({call["ClientToken"] for call in wire.calls("RunInstances")}) == len(tried)
    assert sum(event.what.startswith("no room for 2 x ") and code in event.what for event in events) == len(tried) - 1
    assert world.resources() == complete(2)


@row("InsufficientInstanceCapacity")
def test_no_room_anywhere(world: World, wire: Wire, code: str) -> None:
    wire.refuse("RunInstances", code, times=1000)
    error = refused(world)
    places = len({call["NetworkInterface.1.SubnetId"] for call in wire.calls("RunInstances")})
    assert len(wire.calls("RunInstances")) == places
    assert error.message.count(f": AWS's words on {code} ({code})") == places
    assert "no capacity for 2 nodes in any place that was tried, and nothing was launched" in error.message
    assert all(key in str(error.hint) for key in ("[provision] instance_types", "market", "min_nodes"))
    assert "instances" not in world.resources()


@row("InsufficientInstanceCapacity")
def test_no_room_after_all_the_partial_set_is_deleted(world: World, code: str) -> None:
    ended: list[str] = []
    events: list[Event] = []

    def end_one(event: Event) -> None:
        events.append(event)
        if event.kind == "done" and event.what.startswith("launch") and not ended:
            instance = next(iter(world.sandbox.backend.sandbox_instances()))
            instance._end_for("shutting-down", f"Server.{code}", "There was insufficient capacity")
            ended.append(instance.id)

    world.up(make_config(nodes=3), report=end_one)
    assert ended
    assert {node.zone for node in world.describe().nodes} == {"us-east-1b"}
    assert world.resources() == complete(3)
    assert any(ended[0] in event.what and "There was insufficient capacity" in event.what for event in events)


# --- Unsupported ------------------------------------------------------------------------------------------------------


@row("Unsupported")
def test_a_zone_without_the_type_is_skipped(world: World, wire: Wire, code: str) -> None:
    wire.refuse("RunInstances", code)
    events: list[Event] = []
    world.up(make_config(), report=events.append)
    assert {node.zone for node in world.describe().nodes} == {"us-east-1b"}
    assert len(wire.calls("RunInstances")) == 2
    assert f"no room for 2 x c5.xlarge on demand in us-east-1a: AWS's words on {code} ({code})" in {
        event.what for event in events
    }


# --- VcpuLimitExceeded, MaxSpotInstanceCountExceeded ------------------------------------------------------------------


@row("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded")
def test_a_limit_of_the_account_stops(world: World, wire: Wire, code: str) -> None:
    market, quota = ("spot", "L-34B43A08") if "Spot" in code else ("on-demand", "L-1216C47A")
    wire.refuse("RunInstances", code, times=1000)
    error = refused(world, market=market)
    assert isinstance(error, QuotaError)
    assert len(wire.calls("RunInstances")) == 1
    first, second = error.message.splitlines()
    assert first.startswith(words(code))
    assert re.fullmatch(rf"  {quota} .*: 8 vCPUs needed, 0 in use, limit \d+", second)
    assert "[provision] nodes, instance_type, market" in str(error.hint)
    assert f"--quota-code {quota} --desired-value 8" in str(error.hint)
    assert "instances" not in world.resources()
    assert world.files.launches() == ()


# --- RequestLimitExceeded, Throttling, InternalError, Unavailable -----------------------------------------------------


@row(*BUSY)
def test_busy_the_launch_is_asked_for_again_with_its_token(world: World, wire: Wire, code: str) -> None:
    wire.refuse("RunInstances", code, times=LAUNCH_ATTEMPTS - 1, status=BUSY[code])
    before = len(world.time.slept_s)
    world.up(make_config())
    calls = wire.calls("RunInstances")
    assert len(calls) == LAUNCH_ATTEMPTS
    assert len({call["ClientToken"] for call in calls}) == 1
    assert_jittered(world.time.slept_s[before:][: LAUNCH_ATTEMPTS - 1], longest_s=30)
    assert world.resources() == complete(2)


@row(*BUSY)
def test_busy_for_good_the_launch_keeps_its_token(world: World, wire: Wire, code: str) -> None:
    wire.refuse("RunInstances", code, times=LAUNCH_ATTEMPTS, status=BUSY[code])
    error = refused(world)
    assert error.message.startswith(words(code))
    assert error.hint == "AWS is busy: the same command again in a minute; it goes on where it stopped"
    [launch] = world.files.launches()

    world.up(make_config())
    assert {call["ClientToken"] for call in wire.calls("RunInstances")} == {launch.token}
    assert world.resources() == complete(2)


@row("RequestLimitExceeded")
@pytest.mark.parametrize(
    "action", ["ImportKeyPair", "CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "CreatePlacementGroup"]
)
def test_busy_for_a_minute_up_waits(world: World, wire: Wire, action: str, code: str) -> None:
    wire.refuse(action, code, times=ATTEMPTS - 1, status=BUSY[code])
    before = len(world.time.slept_s)
    world.up(make_config())
    assert len(wire.calls(action)) == ATTEMPTS
    assert len(set(world.time.slept_s[before:][: ATTEMPTS - 1])) == ATTEMPTS - 1  # no two waits are the same: jitter
    assert world.resources() == complete(2)


@row("RequestLimitExceeded", "InternalError")
@pytest.mark.parametrize("action", ["TerminateInstances", "DeleteSecurityGroup", "DeleteKeyPair", "DescribeInstances"])
def test_busy_for_a_minute_down_waits(world: World, wire: Wire, action: str, code: str) -> None:
    world.up(make_config())
    wire.refuse(action, code, times=ATTEMPTS - 1, status=BUSY[code])
    assert world.down().leftovers == ()
    assert wire.left == 0
    assert not world.resources()


@row(*BUSY)
def test_busy_for_good_is_said_and_the_next_up_goes_on(world: World, wire: Wire, code: str) -> None:
    wire.refuse("CreateSecurityGroup", code, times=1000, status=BUSY[code])
    error = refused(world)
    assert len(wire.calls("CreateSecurityGroup")) == ATTEMPTS
    assert error.message.startswith(f"{words(code)}trying to make security group {GROUP} in vpc-")
    assert error.hint == "AWS is busy: the same command again in a minute; it goes on where it stopped"
    wire.left = 0
    world.up(make_config())
    assert world.resources() == complete(2)


def assert_jittered(delays_s: list[float], *, longest_s: float) -> None:
    for number, delay_s in enumerate(delays_s):
        ceiling_s = min(2**number, longest_s)
        assert ceiling_s / 2 <= delay_s <= ceiling_s
    assert len(set(delays_s)) == len(delays_s)


# --- InvalidInstanceID.NotFound, InvalidGroup.NotFound ----------------------------------------------------------------


@row("InvalidGroup.NotFound")
@pytest.mark.parametrize("action", ["AuthorizeSecurityGroupIngress", "RunInstances"])
def test_a_group_too_young_to_be_known(world: World, wire: Wire, action: str, code: str) -> None:
    wire.refuse(action, code, times=5)
    world.up(make_config())
    assert len(wire.calls(action)) == 6
    assert len({call.get("ClientToken") for call in wire.calls(action)}) == 1
    assert world.resources() == complete(2)


@row("InvalidGroup.NotFound")
def test_a_group_that_is_never_known(world: World, wire: Wire, code: str) -> None:
    wire.refuse("RunInstances", code, times=1000)
    began = world.time.monotonic()
    error = refused(world)
    assert 60 <= world.time.monotonic() - began < 100
    assert error.message.startswith(words(code))
    assert "[provision] region" in str(error.hint)
    wire.left = 0
    world.up(make_config())
    assert world.resources() == complete(2)


@row("InvalidInstanceID.NotFound")
def test_instances_too_young_to_be_known_are_ended_all_the_same(world: World, wire: Wire, code: str) -> None:
    fail_one = world.failing_launch(lambda: wire.refuse("TerminateInstances", code, times=5))

    with pytest.raises(AwsError, match="the host did not come up"):
        world.up(make_config(), report=fail_one)
    assert len(wire.calls("TerminateInstances")) == 6
    assert "instances" not in world.resources()


@row("InvalidInstanceID.NotFound")
def test_down_waits_for_listed_instances_to_be_known(world: World, wire: Wire, code: str) -> None:
    world.up(make_config())
    wire.refuse("TerminateInstances", code, times=5)
    assert world.down().leftovers == ()
    assert len(wire.calls("TerminateInstances")) == 6
    assert not world.resources()


@row("InvalidInstanceID.NotFound")
def test_down_does_not_wait_for_ever(world: World, wire: Wire, code: str) -> None:
    world.up(make_config())
    wire.refuse("TerminateInstances", code, times=1000)
    began = world.time.monotonic()
    with pytest.raises(AwsError) as caught:
        world.down()
    assert 60 <= world.time.monotonic() - began < 100
    assert caught.value.message.startswith(words(code))
    assert "cluster status" in str(caught.value.hint)
    assert world.resources()["instances"] == 2


@row("InvalidInstanceID.NotFound", "InvalidGroup.NotFound")
def test_gone_already_is_as_good_to_down(world: World, wire: Wire, code: str) -> None:
    world.up(make_config())
    wire.refuse("TerminateInstances" if "Instance" in code else "DeleteSecurityGroup", code, after=True)
    assert world.down().leftovers == ()
    assert wire.left == 0
    assert not world.resources()


# --- InvalidGroup.Duplicate, InvalidKeyPair.Duplicate, InvalidPermission.Duplicate ------------------------------------


def make_named(world: World, code: str, tags: list[Any]) -> None:
    """What takes the name that `up` wants, with another machine's key."""
    ec2 = world.clients.ec2
    if code == "InvalidGroup.Duplicate":
        tagged: Any = [{"ResourceType": "security-group", "Tags": tags}] if tags else []
        ec2.create_security_group(GroupName=GROUP, Description="x", TagSpecifications=tagged)
    else:
        tagged = [{"ResourceType": "key-pair", "Tags": tags}] if tags else []
        ec2.create_key_pair(KeyName=GROUP, KeyType="ed25519", TagSpecifications=tagged)


@row("InvalidGroup.Duplicate", "InvalidKeyPair.Duplicate")
def test_a_name_that_somebody_else_has_taken(world: World, code: str) -> None:
    error = refused_later(world, lambda: make_named(world, code, []))
    kind = "security group" if "Group" in code else "key pair"
    assert error.message.startswith("AWS says: ")
    assert f"({code}): a {kind} {GROUP} is there that this program did not make" in error.message
    assert error.message.endswith(f"(no tag {TAG_NAME} = {NAME})")
    assert error.hint == "give the cluster another name in cluster.toml, or remove it yourself"
    assert "instances" not in world.resources()


@row("InvalidKeyPair.Duplicate")
def test_our_key_pair_with_another_fingerprint(world: World, code: str) -> None:
    error = refused_later(world, lambda: make_named(world, code, ours()))
    assert error.message.startswith("AWS says: ")
    assert f"({code}): the key pair {GROUP} is this cluster's, and its private key is not" in error.message
    assert error.hint == "work from the machine that made it; or end all: cluster down"
    assert "instances" not in world.resources()


@row("InvalidGroup.Duplicate", "InvalidKeyPair.Duplicate", "InvalidPermission.Duplicate")
def test_our_own_whose_reply_was_lost(world: World, wire: Wire, code: str) -> None:
    """The deed is done, the reply says InternalError, and the repeated call meets what the first one made."""
    action = {
        "InvalidGroup.Duplicate": "CreateSecurityGroup",
        "InvalidKeyPair.Duplicate": "ImportKeyPair",
        "InvalidPermission.Duplicate": "AuthorizeSecurityGroupIngress",
    }[code]
    wire.refuse(action, "InternalError", status=500, after=True)
    events: list[Event] = []
    world.up(make_config(), report=events.append)
    assert len(wire.calls(action)) >= 2
    assert [event.kind for event in events].count("same") == 1
    assert world.resources() == complete(2)


# --- DependencyViolation ----------------------------------------------------------------------------------------------


@row("DependencyViolation")
def test_a_group_in_use_is_waited_for(world: World, wire: Wire, code: str) -> None:
    world.up(make_config())
    wire.refuse("DeleteSecurityGroup", code, times=5)
    assert world.down().leftovers == ()
    assert len(wire.calls("DeleteSecurityGroup")) == 6


@row("DependencyViolation")
def test_a_group_that_aws_does_not_say_by_what_it_is_held(world: World, wire: Wire, code: str) -> None:
    world.up(make_config())
    wire.refuse("DeleteSecurityGroup", code, times=1000)
    began = world.time.monotonic()
    with pytest.raises(AwsError) as caught:
        world.down()
    assert 180 <= world.time.monotonic() - began < 300
    assert caught.value.message.startswith(f"AWS says: AWS's words on {code}. ({code}): the security group sg-")
    assert caught.value.message.endswith("is still in use after 180 s: by what, AWS does not say")


# --- InvalidAMIID.NotFound, InvalidKeyPair.NotFound -------------------------------------------------------------------


@row("InvalidAMIID.NotFound")
def test_an_image_of_another_region_is_found_before_spending(world: World, code: str) -> None:
    error = refused(world, ami="ami-0fedcba9876543210")
    assert isinstance(error, ConfigError)
    assert error.message.startswith('[provision] ami = "ami-0fedcba9876543210": AWS says: The image id ')
    assert f"({code})" in error.message
    assert error.message.endswith("us-east-1 has no such image (an image belongs to one region)")
    assert 'ami = "auto"' in str(error.hint)
    assert not world.calls.mutating()


@row("InvalidAMIID.NotFound")
def test_an_image_that_went_meanwhile(world: World, wire: Wire, code: str) -> None:
    wire.refuse("RunInstances", code, times=1000)
    error = refused(world)
    assert len(wire.calls("RunInstances")) == 1
    assert error.message.startswith(words(code))
    assert error.hint == 'set [provision] ami = "auto", or to an image of [provision] region'
    assert world.files.launches() == ()


@row("InvalidKeyPair.NotFound")
def test_a_key_pair_that_went_meanwhile(world: World, wire: Wire, code: str) -> None:
    """It may be too young as well: it is asked for again first."""
    wire.refuse("RunInstances", code, times=1000)
    began = world.time.monotonic()
    error = refused(world)
    assert 60 <= world.time.monotonic() - began < 100
    assert len({call["ClientToken"] for call in wire.calls("RunInstances")}) == 1
    assert error.message.startswith(words(code))
    assert "another region than [provision] region" in str(error.hint)
    wire.left = 0
    world.up(make_config())
    assert world.resources() == complete(2)


# --- UnauthorizedOperation --------------------------------------------------------------------------------------------


@row("UnauthorizedOperation")
@pytest.mark.parametrize("action", ["RunInstances", "CreateSecurityGroup", "ImportKeyPair", "TerminateInstances"])
def test_a_missing_permission_is_found_before_spending(world: World, action: str, code: str) -> None:
    world.sandbox.book.arm(f"unauthorized action={action}")
    error = refused(world)
    assert f"nothing was made: ec2:{action}" in error.message
    assert code not in error.message  # several calls were rehearsed, and all that is missing is told at once
    assert error.hint == "show whoever runs the account what is needed: cluster iam-policy"
    assert not world.calls.mutating()


@row("UnauthorizedOperation")
@pytest.mark.parametrize(
    "action",
    ["ImportKeyPair", "CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "CreatePlacementGroup", "RunInstances"],
)
def test_a_permission_that_goes_meanwhile(world: World, wire: Wire, action: str, code: str) -> None:
    wire.refuse(action, code, times=1000)
    error = refused(world)
    assert len(wire.calls(action)) == 1
    assert error.message.startswith(words(code))
    assert f"need the permission ec2:{action}: " in str(error.hint)
    assert "cluster iam-policy" in str(error.hint)
    wire.left = 0
    world.up(make_config())
    assert world.resources() == complete(2)


@row("UnauthorizedOperation")
@pytest.mark.parametrize("action", ["TerminateInstances", "DeleteSecurityGroup", "DeleteKeyPair"])
def test_a_permission_that_down_lacks(world: World, wire: Wire, action: str, code: str) -> None:
    world.up(make_config())
    wire.refuse(action, code)
    with pytest.raises(AwsError, match="UnauthorizedOperation, while trying to"):
        world.down()
    assert world.down().leftovers == ()
    assert not world.resources()


# --- OptInRequired, PendingVerification -------------------------------------------------------------------------------

ACCOUNT_WORDS = {"OptInRequired": "sign in to the AWS console", "PendingVerification": "still verifying the account"}


@row("OptInRequired", "PendingVerification")
def test_the_accounts_state_is_found_before_spending(world: World, wire: Wire, code: str) -> None:
    wire.refuse("RunInstances", code, times=1000)
    error = refused(world)
    assert error.message.startswith(f"{words(code)}checking what is to be launched)")
    assert ACCOUNT_WORDS[code] in str(error.hint)
    assert "does not help" in str(error.hint)
    assert wire.left == 999
    assert not world.calls.mutating()


@row("OptInRequired", "PendingVerification")
def test_the_accounts_state_is_not_asked_for_again(world: World, wire: Wire, code: str) -> None:
    error = refused_later(world, lambda: wire.refuse("RunInstances", code, times=1000))
    assert len(wire.calls("RunInstances")) == 1
    assert error.message.startswith(words(code))
    assert ACCOUNT_WORDS[code] in str(error.hint)
    assert world.files.launches() == ()
    assert "instances" not in world.resources()


# --- credentials that end in the middle -------------------------------------------------------------------------------

ACTIONS = ("ImportKeyPair", "CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "RunInstances")


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired", "AuthFailure"])
@pytest.mark.parametrize("action", ACTIONS)
def test_credentials_that_end_in_the_middle(world: World, wire: Wire, action: str, code: str) -> None:
    wire.refuse(action, code, times=1000)
    error = refused(world)
    assert isinstance(error, CredentialsError)
    assert len(wire.calls(action)) == 1
    assert error.message.startswith(words(code))
    assert "session has ended" in str(error.hint) or "aws sts get-caller-identity" in str(error.hint)
    wire.left = 0
    world.up(make_config())
    assert world.resources() == complete(2)


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired", "AuthFailure", "UnauthorizedOperation"])
def test_a_launch_of_which_nothing_is_known_is_not_doubled_when_the_credentials_end(world: World, code: str) -> None:
    """The reply to the first call is lost, the second one is refused: only the token knows what was launched."""
    world.sandbox.reset(consistency_delay_s=20)
    with wired(world) as wire:
        world.sandbox.book.arm("lost-reply action=RunInstances")

        def expire(event: Event) -> None:
            if event.what.startswith("launch not done yet"):
                wire.refuse("RunInstances", code)

        with pytest.raises(AwsError, match=code):
            world.up(make_config(), report=expire)
        [launch] = world.files.launches()

        world.up(make_config())
        assert {call["ClientToken"] for call in wire.calls("RunInstances")} == {launch.token}
    assert world.settled().nodes
    assert world.resources() == complete(2)


def test_credentials_that_end_while_half_a_cluster_is_ended(world: World, wire: Wire) -> None:
    fail_one = world.failing_launch(lambda: wire.refuse("TerminateInstances", "ExpiredToken", times=1000))

    with pytest.raises(ClusterError, match="the host did not come up") as caught:
        world.up(make_config(), report=fail_one)
    assert "What was launched could not be ended: AWS says: AWS's words on ExpiredToken." in caught.value.message
    assert str(caught.value.hint).startswith("the session has ended: get new credentials")
    assert str(caught.value.hint).endswith("then: cluster down, so that nothing is left that costs money")
    wire.left = 0
    assert world.down().leftovers == ()
    assert not world.resources()


# --- the table itself -------------------------------------------------------------------------------------------------


def test_no_row_of_the_table_is_without_its_tests() -> None:
    codes = [code for row_codes, _ in ROWS for code in row_codes]
    assert len(set(codes)) == len(codes)
    assert set(codes) == SHOWN
