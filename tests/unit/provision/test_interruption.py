"""The notice from AWS Fault Injection Service, checked against botocore's description of the service."""

from typing import Any
from unittest.mock import ANY

import boto3
import pytest
from botocore.stub import Stubber

import foundation.waiting
from foundation.errors import AwsError
from provision.interruption import send_notice

ROLE = "arn:aws:iam::123456789012:role/fis"
INSTANCE_ARN = "arn:aws:ec2:eu-west-1:123456789012:instance/i-1"


class FakeClients:
    """Clients with a stubbed FIS."""

    region = "eu-west-1"

    def __init__(self) -> None:
        self.fis: Any = boto3.client(
            "fis", region_name=self.region, aws_access_key_id="testing", aws_secret_access_key="testing"
        )

    def make_fis(self) -> Any:
        return self.fis


def experiment(status: str, reason: str = "") -> dict[str, Any]:
    return {"experiment": {"id": "EXP1", "state": {"status": status, **({"reason": reason} if reason else {})}}}


def answer(stubber: Stubber, *states: dict[str, Any]) -> None:
    """Prepares the responses for one template, one experiment with these states, and the template's deletion."""
    stubber.add_response(
        "create_experiment_template",
        {"experimentTemplate": {"id": "EXT1"}},
        {
            "clientToken": ANY,
            "description": ANY,
            "roleArn": ROLE,
            "stopConditions": [{"source": "none"}],
            "targets": {
                "node": {
                    "resourceType": "aws:ec2:spot-instance",
                    "resourceArns": [INSTANCE_ARN],
                    "selectionMode": "ALL",
                }
            },
            "actions": {
                "notice": {
                    "actionId": "aws:ec2:send-spot-instance-interruptions",
                    "parameters": {"durationBeforeInterruption": "PT2M"},
                    "targets": {"SpotInstances": "node"},
                }
            },
            "tags": {"cluster:name": "demo"},
        },
    )
    started = {"experimentTemplateId": "EXT1", "tags": {"cluster:name": "demo"}}
    stubber.add_response("start_experiment", experiment("initiating"), started)
    for state in states:
        stubber.add_response("get_experiment", state, {"id": "EXP1"})
    stubber.add_response("delete_experiment_template", {"experimentTemplate": {"id": "EXT1"}}, {"id": "EXT1"})


def send(clients: Any) -> None:
    send_notice(clients, "i-1", account_id="123456789012", role_arn=ROLE, name="demo")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foundation.waiting, "FIRST_PAUSE_S", 0.001)


def test_the_notice_is_sent_and_nothing_is_left() -> None:
    clients = FakeClients()
    with Stubber(clients.fis) as stubber:
        answer(stubber, experiment("pending"), experiment("running"))
        send(clients)
        stubber.assert_no_pending_responses()


def test_a_failed_experiment_is_an_error_and_nothing_is_left() -> None:
    clients = FakeClients()
    with Stubber(clients.fis) as stubber:
        answer(stubber, experiment("failed", "Unable to assume role"))
        with pytest.raises(AwsError, match="did not interrupt i-1: failed: Unable to assume role") as caught:
            send(clients)
        stubber.assert_no_pending_responses()
    assert "fis.amazonaws.com" in (caught.value.hint or "")
