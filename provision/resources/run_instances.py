"""RunInstances: the request, and the call with its retries."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
)
from msgspec import Struct

from foundation.progress import Event, Report
from provision.aws.clients import NOT_FOUND_TIMEOUT_S, aws_words, error_code
from provision.aws.error_hints import RETRY_CODES
from provision.lease.terms import Lease, render_lease
from provision.lease.user_data import render_user_data
from provision.model import TAG_INDEX, TAG_LEASE, LaunchOption, format_indices
from provision.resources.resource import tag_specification

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import (
        InstanceNetworkInterfaceSpecificationTypeDef,
        ReservationResponseTypeDef,
        RunInstancesRequestTypeDef,
        SpotMarketOptionsTypeDef,
    )

LAUNCH_ATTEMPTS = 8
"""About two minutes with the back-off below."""
_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 30.0
_NOT_YET_KNOWN = frozenset({"InvalidGroup.NotFound", "InvalidKeyPair.NotFound", "InvalidPlacementGroup.Unknown"})


class NodeSpec(Struct, frozen=True, kw_only=True):
    """The nodes of one launch, the same in every place. placement_group: for the options with `placement`.

    authorized: an additional line in the authorized_keys of `user`; "" for none. tags: of cluster.toml.
    """

    indices: tuple[int, ...]
    key_name: str
    volume_size_gib: int
    public_address: bool
    placement_group: str | None = None
    instance_profile: str | None = None
    user: str = ""
    authorized: str = ""
    tags: Mapping[str, str] = {}


def run_instances_request(
    nodes: NodeSpec,
    option: LaunchOption,
    *,
    least: int,
    name: str,
    owner: str,
    group_id: str | None,
    lease: Lease | None = None,
) -> RunInstancesRequestTypeDef:
    """Returns the whole request except its ClientToken. Pure.

    Metadata is available only by IMDSv2 and one hop away: containers on a node cannot use the node's role. The root
    volume is encrypted and deleted with its instance. All instances have the same tags; provision/describe.py finds
    their index. least: how many nodes are enough. group_id: None for a dry run without a group. lease: when
    the nodes end by themselves. Their metadata includes their tags, so that they see changes of the lease.
    """
    tag = partial(tag_specification, name=name, owner=owner, role="node", more=nodes.tags)
    leased = {} if lease is None else {TAG_LEASE: render_lease(lease)}
    request: RunInstancesRequestTypeDef = {
        "ImageId": option.image_id,
        "InstanceType": option.instance_type,  # type: ignore[typeddict-item]  # any string; AWS checks it
        "MinCount": least,
        "MaxCount": len(nodes.indices),
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "enabled",
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": option.root_device,
                "Ebs": {
                    "VolumeSize": nodes.volume_size_gib,
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "UserData": render_user_data(  # type: ignore[typeddict-item]  # or bytes
            lease, cluster=name, user=nodes.user, authorized=nodes.authorized
        ),
        "NetworkInterfaces": [_network_interface(option, group_id=group_id, public_address=nodes.public_address)],
        "TagSpecifications": [
            tag("instance", more={**nodes.tags, TAG_INDEX: format_indices(nodes.indices), **leased}),
            tag("volume"),
            tag("network-interface"),
        ],
    }
    if group_id is not None:
        request["KeyName"] = nodes.key_name
    if option.placement and nodes.placement_group is not None:
        request["Placement"] = {"GroupName": nodes.placement_group}
    if nodes.instance_profile is not None:
        request["IamInstanceProfile"] = {"Name": nodes.instance_profile}
    if lease is not None and lease.limits:
        request["InstanceInitiatedShutdownBehavior"] = find_shutdown_behavior(lease)
    if option.reservation is not None:
        request["CapacityReservationSpecification"] = {
            "CapacityReservationTarget": {"CapacityReservationId": option.reservation}
        }
    if option.is_block:
        request["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    if option.market == "spot":
        # One-time: AWS does not launch it again after an interruption.
        spot: SpotMarketOptionsTypeDef = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
        request["TagSpecifications"] = [*request["TagSpecifications"], tag("spot-instances-request")]
    return request


def find_shutdown_behavior(lease: Lease) -> Literal["stop", "terminate"]:
    """Returns what EC2 does with a node that shuts itself down."""
    return "stop" if lease.then == "stop" else "terminate"


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
        # One adapter, on the first network card: instances with several interfaces get no public address.
        interface["InterfaceType"] = "efa"
    return interface


def request_digest(request: RunInstancesRequestTypeDef) -> str:
    """Returns a digest that is the same for the same request in every process."""
    return hashlib.sha256(json.dumps(request, sort_keys=True, default=bytes.hex).encode()).hexdigest()


def call_run_instances(
    run_ec2: EC2Client, request: RunInstancesRequestTypeDef, *, client_token: str, report: Report
) -> ReservationResponseTypeDef:
    """Calls RunInstances, and retries with the same ClientToken, so that the nodes are launched only once.

    run_ec2 must not retry by itself. Retries with jittered back-off: throttling and lost connections, LAUNCH_ATTEMPTS
    times; resources that EC2 does not know yet (group, key pair, placement group, instance profile), for
    NOT_FOUND_TIMEOUT_S. Raises boto3's other errors.
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
            report(Event(kind="warn", what=f"retrying the launch: {words}"))
        ceiling_s = min(_FIRST_DELAY_S * 2 ** (attempt - 1), _LONGEST_DELAY_S)
        time.sleep(ceiling_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret


def _is_worth_repeating(error: ClientError | BotoCoreError, *, attempt: int, waiting: bool) -> bool:
    if isinstance(error, ClientError):
        code = error_code(error)
        # EC2 may not know a new resource yet. For an instance profile, or its role, only the message tells.
        is_profile = code == "InvalidParameterValue" and "IAM Instance Profile" in str(error)
        if is_profile or code in _NOT_YET_KNOWN:
            return waiting
        if code not in RETRY_CODES:
            return False
    return attempt < LAUNCH_ATTEMPTS
