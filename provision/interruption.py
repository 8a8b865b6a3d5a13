"""Interrupts a spot instance for a drill: AWS Fault Injection Service sends the same notice as AWS does.

https://docs.aws.amazon.com/fis/latest/userguide/fis-actions-reference.html#send-spot-instance-interruptions
"""

import uuid
from typing import Any

from foundation.errors import AwsError
from foundation.waiting import poll
from provision.aws.clients import Clients, aws_errors
from provision.aws.iam_policy import partition_of
from provision.model import TAG_NAME

ACTION = "aws:ec2:send-spot-instance-interruptions"
DURATION = "PT2M"
"""From the notice to the interruption: the minimum of FIS, and the time that AWS gives."""
STARTED_TIMEOUT_S = 120.0
_RUNS = frozenset({"running", "completed"})
_FAILED = frozenset({"failed", "stopped", "cancelled"})
ROLE_HINT = (
    "make a role that fis.amazonaws.com may assume, with ec2:SendSpotInstanceInterruptions and ec2:DescribeInstances: "
    "https://docs.aws.amazon.com/fis/latest/userguide/getting-started-iam-service-role.html"
)


def template_request(instance_arn: str, *, role_arn: str, name: str, token: str) -> dict[str, Any]:
    """Returns the request for the experiment template: one action on one instance, without stop conditions. Pure."""
    return {
        "clientToken": token,
        "description": f"cluster drill spot: interrupts a node of cluster {name}",
        "roleArn": role_arn,
        "stopConditions": [{"source": "none"}],
        "targets": {
            "node": {
                "resourceType": "aws:ec2:spot-instance",
                "resourceArns": [instance_arn],
                "selectionMode": "ALL",
            }
        },
        "actions": {
            "notice": {
                "actionId": ACTION,
                "parameters": {"durationBeforeInterruption": DURATION},
                "targets": {"SpotInstances": "node"},
            }
        },
        "tags": {TAG_NAME: name},
    }


def send_notice(clients: Clients, instance_id: str, *, account_id: str, role_arn: str, name: str) -> None:
    """Has FIS send an interruption notice to a spot instance, and returns once it is sent.

    role_arn: the role that FIS assumes. name: the cluster's. Deletes the experiment's template afterwards. Raises
    AwsError.
    """
    fis = clients.make_fis()
    arn = f"arn:{partition_of(clients.region)}:ec2:{clients.region}:{account_id}:instance/{instance_id}"
    request = template_request(arn, role_arn=role_arn, name=name, token=str(uuid.uuid4()))
    with aws_errors("making the experiment in AWS Fault Injection Service"):
        template = fis.create_experiment_template(**request)["experimentTemplate"]["id"]
    try:
        with aws_errors("starting the experiment in AWS Fault Injection Service"):
            experiment = fis.start_experiment(experimentTemplateId=template, tags={TAG_NAME: name})["experiment"]["id"]

            def look() -> dict[str, Any] | None:
                state: dict[str, Any] = fis.get_experiment(id=experiment)["experiment"]["state"]
                return state if state["status"] in _RUNS | _FAILED else None

            state = poll(look, timeout_s=STARTED_TIMEOUT_S)
    finally:
        with aws_errors("deleting the experiment's template in AWS Fault Injection Service"):
            fis.delete_experiment_template(id=template)
    if state is None or state["status"] in _FAILED:
        reason = "it did not start" if state is None else f"{state['status']}: {state.get('reason', 'no reason given')}"
        raise AwsError(f"AWS Fault Injection Service did not interrupt {instance_id}: {reason}", hint=ROLE_HINT)
