"""How `up` and `down` handle AWS's error codes, with botocore's retries. For messages and hints, see test_aws.py."""

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import pytest

from ec2_sandbox.api.refusals import Refusal, refuse
from foundation.errors import AwsError, ClusterError, QuotaError
from foundation.progress import Event, silent
from provision.aws.clients import ATTEMPTS
from provision.model import TAG_NAME, resource_name
from provision.resources.run_instances import LAUNCH_ATTEMPTS
from provision.up import up
from provision_world import NAME, World, complete, make_config

GROUP = resource_name(NAME)
FOR_EVER = 1000


@dataclass
class Wire:
    """Between botocore and the sandbox: records every call except dry runs, and refuses some."""

    app: WSGIApplication
    asked: list[dict[str, str]] = field(default_factory=list)
    refusing: dict[str, tuple[str, int, bool]] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)

    def refuse(self, *actions: str, code: str, times: int = 1, status: int = 400, after: bool = False) -> None:
        """Refuses the next calls of each of these actions, and of no others. after: once they have taken effect."""
        self.refusing = dict.fromkeys(actions, (code, status, after))
        self.times = dict.fromkeys(actions, times)

    @property
    def left(self) -> int:
        """How many calls are still to be refused."""
        return sum(self.times.values())

    def calls(self, action: str) -> list[dict[str, str]]:
        return [asked for asked in self.asked if asked["Action"] == action]

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        body = environ["wsgi.input"].read()
        environ["wsgi.input"] = io.BytesIO(body)
        asked = dict(parse_qsl(body.decode(errors="replace")))
        if "Action" not in asked:
            return self.app(environ, start_response)
        if asked.get("DryRun") != "true":
            self.asked.append(asked)
        action = asked["Action"]
        if self.times.get(action, 0) > 0:
            code, status, after = self.refusing[action]
            # A dry run reports only errors that depend on the account's state.
            if asked.get("DryRun") != "true" or code in {"OptInRequired", "PendingVerification"}:
                self.times[action] -= 1
                if after:
                    list(self.app(environ, lambda *_: lambda _: None))
                refusal = Refusal(status=f"{status} Refused", code=code, message=f"AWS's words on {code}.")
                return refuse(environ, start_response, "ec2", refusal)
        return self.app(environ, start_response)


@pytest.fixture
def wire(world: World) -> Iterator[Wire]:
    """EC2's error responses on the wire, so that botocore's retries take part."""
    below = world.sandbox.app
    world.sandbox.app = between = Wire(below)
    yield between
    world.sandbox.app = below


def words(code: str) -> str:
    return f"AWS says: AWS's words on {code}. ({code}, while "


def refused(world: World, **settings: Any) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        world.up(make_config(**settings))
    return caught.value


def test_a_quota_ends_the_launch(world: World, wire: Wire) -> None:
    wire.refuse("RunInstances", code="VcpuLimitExceeded", times=FOR_EVER)
    error = refused(world)
    assert isinstance(error, QuotaError)
    assert "reduce [provision] nodes" in str(error.hint)
    assert "instances" not in world.resources()
    assert world.files.launches() == ()


def test_up_continues_after_calls_that_stayed_throttled(world: World, wire: Wire) -> None:
    """The launch keeps its token, and its last series of retries succeeds."""
    code = "RequestLimitExceeded"
    wire.refuse("CreateSecurityGroup", code=code, times=FOR_EVER, status=503)
    error = refused(world)
    assert len(wire.calls("CreateSecurityGroup")) == ATTEMPTS
    assert error.message.startswith(f"{words(code)}trying to make security group {GROUP} in vpc-")
    wire.refuse("RunInstances", code=code, times=LAUNCH_ATTEMPTS, status=503)
    error = refused(world)
    assert error.message.startswith(words(code))
    assert error.hint == "AWS is busy: run the command again in a minute; it continues where it stopped"
    assert len(wire.calls("RunInstances")) == LAUNCH_ATTEMPTS
    [launch] = world.files.launches()
    wire.refuse("RunInstances", code=code, times=LAUNCH_ATTEMPTS - 1, status=503)
    before = len(world.time.slept_s)
    world.up(make_config())
    assert len(wire.calls("RunInstances")) == 2 * LAUNCH_ATTEMPTS
    assert {call["ClientToken"] for call in wire.calls("RunInstances")} == {launch.token}
    delays_s = world.time.slept_s[before:][: LAUNCH_ATTEMPTS - 1]
    assert all(min(2**n, 30) / 2 <= delay_s <= min(2**n, 30) for n, delay_s in enumerate(delays_s))
    assert len(set(delays_s)) == len(delays_s)  # jitter
    assert world.resources() == complete(2)


@pytest.mark.parametrize("kind", ["security group", "key pair"])
def test_a_name_that_is_taken(world: World, kind: str) -> None:
    """Somebody takes it between plan and apply."""
    plan = world.prepare(make_config())
    if kind == "security group":
        world.clients.ec2.create_security_group(GroupName=GROUP, Description="x")
    else:
        world.clients.ec2.create_key_pair(KeyName=GROUP, KeyType="ed25519")
    with pytest.raises(ClusterError) as caught:
        up(plan, clients=world.clients, files=world.files, report=silent)
    assert caught.value.message.startswith(f"the {kind} {GROUP} exists, but this program did not make it")
    assert caught.value.message.endswith(f"(no tag {TAG_NAME} = {NAME})")
    assert caught.value.hint == "set another name in cluster.toml, or delete the resource yourself"
    assert "RunInstances" not in world.calls.made


def test_the_accounts_state_is_checked_before_the_launch(world: World, wire: Wire) -> None:
    wire.refuse("RunInstances", code="OptInRequired", times=FOR_EVER)
    error = refused(world)
    assert error.message.startswith(words("OptInRequired") + "checking the launch)")
    assert wire.left == FOR_EVER - 1
    assert not world.calls.mutating()


def test_a_launch_with_an_unknown_result_keeps_its_token(world: World, wire: Wire) -> None:
    """The response to the first call is lost, and the second call is refused: only the token leads to the instances."""
    world.sandbox.reset(consistency_delay_s=20)
    world.sandbox.book.arm("lost-reply action=RunInstances")

    def expire(event: Event) -> None:
        if event.what.startswith("retrying the launch"):
            wire.refuse("RunInstances", code="ExpiredToken")

    with pytest.raises(AwsError, match="ExpiredToken"):
        world.up(make_config(), report=expire)
    [launch] = world.files.launches()
    world.up(make_config())
    assert {call["ClientToken"] for call in wire.calls("RunInstances")} == {launch.token}
    assert world.settled().nodes
    assert world.resources() == complete(2)
