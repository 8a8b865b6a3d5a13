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

from provision.aws import NOT_FOUND_TIMEOUT_S, aws_words, error_code
from provision.hints import RETRY_CODES
from provision.model import TAG_INDEX, LaunchOption, format_indices, tags
from provision.progress import Event, Report
from provision.steps import LaunchNodes

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.literals import ResourceTypeType
    from mypy_boto3_ec2.type_defs import (
        InstanceNetworkInterfaceSpecificationTypeDef,
        ReservationResponseTypeDef,
        RunInstancesRequestTypeDef,
        SpotMarketOptionsTypeDef,
        TagSpecificationTypeDef,
    )

LAUNCH_ATTEMPTS = 8
"""With the back-off below: about two minutes."""
_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 30.0

# A boothook, as cloud-init runs it before sshd starts, where the image orders them so, and at every boot:
# https://cloudinit.readthedocs.io/en/latest/explanation/format.html#cloud-boothook
USER_DATA = """\
#cloud-boothook
#!/bin/sh
# Has sshd end sessions whose client is gone. A node that was frozen or cut off hears nothing of its client's end, and
# with the kernel's own keepalive a session then goes on for two hours.
config=/etc/ssh/sshd_config
settings='# Written by cluster at boot.
ClientAliveInterval 15
ClientAliveCountMax 4'
# sshd uses the first value that it finds.
if grep -Eqi '^ *include .*/sshd_config\\.d/' $config; then
    file=$config.d/00-cluster.conf
    [ "$(cat $file 2>/dev/null)" != "$settings" ] || exit 0
    mkdir -p $config.d
    echo "$settings" >$file
else
    ! grep -q '^# Written by cluster' $config || exit 0
    cp -p $config $config.new && { echo "$settings"; cat $config; } >$config.new && mv $config.new $config
fi
if [ -d /run/systemd/system ]; then
    # Without waiting: sshd may be about to start after this script.
    for service in ssh sshd; do systemctl --no-block try-reload-or-restart $service.service; done 2>/dev/null
elif [ -s /run/sshd.pid ]; then
    kill -HUP "$(cat /run/sshd.pid)"
fi
exit 0
"""

_NOT_YET_KNOWN = frozenset({"InvalidGroup.NotFound", "InvalidKeyPair.NotFound", "InvalidPlacementGroup.Unknown"})


def run_instances_request(
    step: LaunchNodes, option: LaunchOption, *, least: int, name: str, owner: str, group_id: str | None
) -> RunInstancesRequestTypeDef:
    """The whole request but its ClientToken. least: how many are good enough.

    Metadata by IMDSv2 only, one hop away: containers on a node cannot take the node's role. The root volume
    is encrypted and ends with its instance. sshd ends sessions whose client is gone (USER_DATA). All instances get
    the same tags: provision/describe.py tells how an index comes of them. group_id: None for a dry run before there
    is one.
    """
    named = tags(name=name, owner=owner, role="node")
    indexed = {**named, TAG_INDEX: format_indices(step.indices)}
    request: RunInstancesRequestTypeDef = {
        "ImageId": option.image_id,
        "InstanceType": option.instance_type,  # type: ignore[typeddict-item]  # any string; AWS judges
        "MinCount": least,
        "MaxCount": len(step.indices),
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": option.root_device,
                "Ebs": {
                    "VolumeSize": step.volume_size_gib,
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "UserData": USER_DATA,
        "NetworkInterfaces": [_network_interface(option, group_id=group_id, public_address=step.public_address)],
        "TagSpecifications": [
            _tagged("instance", indexed),
            _tagged("volume", named),
            _tagged("network-interface", named),
        ],
    }
    if group_id is not None:
        request["KeyName"] = step.key_name
    if option.placement and step.placement_group is not None:
        request["Placement"] = {"GroupName": step.placement_group}
    if step.instance_profile is not None:
        request["IamInstanceProfile"] = {"Name": step.instance_profile}
    if option.market == "spot":
        # One-time: AWS does not launch it anew when it has ended it. What ended costs nothing more.
        spot: SpotMarketOptionsTypeDef = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
        request["TagSpecifications"] = [*request["TagSpecifications"], _tagged("spot-instances-request", named)]
    return request


def _network_interface(
    option: LaunchOption, *, group_id: str | None, public_address: bool
) -> InstanceNetworkInterfaceSpecificationTypeDef:
    interface: InstanceNetworkInterfaceSpecificationTypeDef = {
        "DeviceIndex": 0,
        "SubnetId": option.subnet_id,
        "AssociatePublicIpAddress": public_address,
        "DeleteOnTermination": True,
    }
    if group_id is not None:
        interface["Groups"] = [group_id]
    if option.efa:
        # One adapter, on the first network card: with more than one interface there is no public address.
        interface["InterfaceType"] = "efa"
    return interface


def request_digest(request: RunInstancesRequestTypeDef) -> str:
    """The same for the same request, in every process."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def call_run_instances(
    run_ec2: EC2Client, request: RunInstancesRequestTypeDef, *, client_token: str, report: Report
) -> ReservationResponseTypeDef:
    """Asks until AWS answers, always with the same ClientToken: however often, it launches once.

    run_ec2 must not retry by itself. Repeated: AWS being busy, lost connections, and what is too young to be
    known (group, key pair, placement group, instance profile); with jittered back-off, LAUNCH_ATTEMPTS times
    (the young: NOT_FOUND_TIMEOUT_S).
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
            words = aws_words(error) if isinstance(error, ClientError) else str(error)
            report(Event(kind="warn", what=f"launch not done yet, asking again: {words}"))
        ceiling_s = min(_FIRST_DELAY_S * 2 ** (attempt - 1), _LONGEST_DELAY_S)
        time.sleep(ceiling_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret


def _is_worth_repeating(error: ClientError | BotoCoreError, *, attempt: int, waiting: bool) -> bool:
    if isinstance(error, ClientError) and _is_not_yet_known(error):
        return waiting
    if isinstance(error, ClientError) and error_code(error) not in RETRY_CODES:
        return False
    return attempt < LAUNCH_ATTEMPTS


def _is_not_yet_known(error: ClientError) -> bool:
    """What was just made is not known everywhere at once; of an instance profile EC2 says so in words only."""
    if error_code(error) == "InvalidParameterValue":
        return "iaminstanceprofile" in str(error).lower()
    return error_code(error) in _NOT_YET_KNOWN


def _tagged(kind: ResourceTypeType, named: dict[str, str]) -> TagSpecificationTypeDef:
    """What is tagged in the call that makes it is never there without its tags."""
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in named.items()]}
