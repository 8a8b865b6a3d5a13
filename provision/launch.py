"""RunInstances: its request, and how often it is asked."""

from __future__ import annotations

import hashlib
import json
import random
import time
from typing import TYPE_CHECKING

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
)

from provision.aws import NOT_FOUND_TIMEOUT_S, RETRY_CODES, error_code
from provision.model import TAG_INDEX, format_indices, tags
from provision.progress import Event, Report
from provision.steps import RunInstances

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.literals import ResourceTypeType
    from mypy_boto3_ec2.type_defs import (
        ReservationResponseTypeDef,
        RunInstancesRequestTypeDef,
        TagSpecificationTypeDef,
    )

LAUNCH_ATTEMPTS = 8
"""With the back-off below: about two minutes."""
_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 30.0

_NOT_YET_KNOWN = frozenset({"InvalidGroup.NotFound", "InvalidKeyPair.NotFound"})


def run_instances_request(step: RunInstances, *, name: str, owner: str, group_id: str) -> RunInstancesRequestTypeDef:
    """The whole request but its ClientToken.

    Metadata by IMDSv2 only, one hop away: containers on a node cannot take the node's role. The root volume
    is encrypted and ends with its instance. All instances get the same tags: provision/describe.py tells how
    an index comes of them.
    """
    target = step.target
    named = tags(name=name, owner=owner, role="node")
    indexed = {**named, TAG_INDEX: format_indices(step.indices)}
    return {
        "ImageId": target.image_id,
        "InstanceType": target.instance_type,  # type: ignore[typeddict-item]  # any string; AWS judges
        "MinCount": len(step.indices),
        "MaxCount": len(step.indices),
        "KeyName": step.key_name,
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": target.root_device,
                "Ebs": {
                    "VolumeSize": step.volume_size_gib,
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "NetworkInterfaces": [
            {
                "DeviceIndex": 0,
                "SubnetId": target.subnet_id,
                "Groups": [group_id],
                "AssociatePublicIpAddress": target.public_address,
                "DeleteOnTermination": True,
            }
        ],
        "TagSpecifications": [
            _tagged("instance", indexed),
            _tagged("volume", named),
            _tagged("network-interface", named),
        ],
    }


def request_digest(request: RunInstancesRequestTypeDef) -> str:
    """The same for the same request, in every process."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def call_run_instances(
    run_ec2: EC2Client, request: RunInstancesRequestTypeDef, *, client_token: str, report: Report
) -> ReservationResponseTypeDef:
    """Asks until AWS answers, always with the same ClientToken: however often, it launches once.

    run_ec2 must not retry by itself. Repeated: AWS being busy, lost connections, and a group or key that is
    too young to be known; with jittered back-off, LAUNCH_ATTEMPTS times (the young: NOT_FOUND_TIMEOUT_S).
    Everything else is raised as boto3 raises it.
    """
    with_token: RunInstancesRequestTypeDef = {**request, "ClientToken": client_token}
    give_up_at = time.monotonic() + NOT_FOUND_TIMEOUT_S
    attempt = 0
    while True:
        attempt += 1
        try:
            return run_ec2.run_instances(**with_token)
        except (ClientError, ConnectTimeoutError, EndpointConnectionError, HTTPClientError) as error:
            if not _is_worth_repeating(error, attempt=attempt, waiting=time.monotonic() < give_up_at):
                raise
            report(Event(kind="warn", what=f"launch not done yet, asking again: {error}"))
        ceiling_s = min(_FIRST_DELAY_S * 2 ** (attempt - 1), _LONGEST_DELAY_S)
        time.sleep(ceiling_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret


def _is_worth_repeating(error: ClientError | BotoCoreError, *, attempt: int, waiting: bool) -> bool:
    if isinstance(error, ClientError) and error_code(error) in _NOT_YET_KNOWN:
        return waiting
    if isinstance(error, ClientError) and error_code(error) not in RETRY_CODES:
        return False
    return attempt < LAUNCH_ATTEMPTS


def _tagged(kind: ResourceTypeType, named: dict[str, str]) -> TagSpecificationTypeDef:
    """What is tagged in the call that makes it is never there without its tags."""
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in named.items()]}
