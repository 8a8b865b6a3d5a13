"""The caller's identity, address and permissions.

Permissions are tested with two of EC2's dry runs, which have no effect: of the launch, and of the end of the nodes. EC2
returns DryRunOperation if the caller is allowed, else UnauthorizedOperation
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/CommonParameters.html, DryRun).

Before the launch, there are no nodes: the second one names an instance that cannot exist. If it is refused, the
permission is missing or depends on tags, which that instance does not have.
"""

import os
import re
import ssl
from collections.abc import Callable
from functools import partial
from ipaddress import AddressValueError, IPv4Address
from typing import Literal, get_args

from botocore.exceptions import ClientError

from foundation.errors import AwsError, ClusterError
from foundation.thread_pool import bounded_pool
from provision.aws.clients import Clients, aws_errors, error_code
from provision.aws.credentials import find_bundle
from provision.aws.error_hints import find_named_action
from provision.config import ProvisionConfig
from provision.describe import describe_cluster
from provision.files import ClusterFiles
from provision.model import Caller, ClusterState, Permissions
from provision.plan import World
from provision.resources.launch import rehearsed_launch

CHECKIP_URL = "https://checkip.amazonaws.com"
_CHECKIP_TIMEOUT_S = 10

Permission = Literal["allowed", "missing", "unknown"]

_ACCOUNT_STATES = frozenset({"Blocked", "OptInRequired", "PendingVerification"})
"""Codes for an account that cannot launch anything in its current state."""

_ON_GROUP = re.compile(r"on resource: \S+:security-group/")
_ANYTHING = re.compile("")
_STAND_IN = "i-00000000000000000"
"""An instance that cannot exist."""


def describe_caller(clients: Clients, config: ProvisionConfig, *, ssh_from: str | None = None) -> Caller:
    """Returns the account and identity of the credentials, and the network that may reach the nodes by ssh.

    ssh_from: that network, if it is not [provision] ssh_from. Raises AwsError. Raises ClusterError when the network is
    "auto" and this machine's address cannot be found.
    """
    wanted = config.ssh_from if ssh_from is None else ssh_from
    with bounded_pool() as pool, aws_errors("looking up the caller's identity"):
        finding = pool.submit(find_caller_address) if wanted == "auto" else None
        identity = clients.sts.get_caller_identity()
    return Caller(
        region=clients.region,
        account_id=identity["Account"],
        owner=identity["Arn"],
        ssh_from=wanted if finding is None else f"{finding.result()}/32",
    )


def find_account(clients: Clients) -> str:
    """Returns the id of the account of the credentials. Raises AwsError."""
    with aws_errors("looking up the caller's identity"):
        return clients.sts.get_caller_identity()["Account"]


def describe_own(clients: Clients, *, name: str, files: ClusterFiles) -> ClusterState:
    """Like describe_cluster. Raises CredentialsError if the cluster was launched in another account, and AwsError."""
    state = describe_cluster(clients.ec2, name=name, known=files.known_instances())
    if not state.exists:
        files.check_account(partial(find_account, clients))
    return state


def find_caller_address() -> IPv4Address:
    """Returns this machine's public address, from checkip.amazonaws.com.

    It is asked without a proxy, since ssh uses none. CLUSTER_CHECKIP_URL selects another such service. Trusts
    botocore's authorities, too. Raises ClusterError.
    """
    from urllib3 import PoolManager  # noqa: PLC0415 - most commands connect to their nodes before they import it
    from urllib3.exceptions import HTTPError  # noqa: PLC0415 - as above

    url = os.environ.get("CLUSTER_CHECKIP_URL") or CHECKIP_URL
    hint = 'set it in cluster.toml: [provision] ssh_from = "ADDRESS/32"'
    if not url.startswith("https://"):
        raise ClusterError(f"CLUSTER_CHECKIP_URL is {url}: must be https://", hint=hint)
    try:
        context = ssl.create_default_context()
        if bundle := find_bundle():
            context.load_verify_locations(bundle)
        with PoolManager(ssl_context=context, retries=False, timeout=_CHECKIP_TIMEOUT_S) as http:
            text = http.request("GET", url, preload_content=False).read(64).decode("ascii", errors="replace").strip()
        return IPv4Address(text)
    except AddressValueError as error:
        raise ClusterError(f"{url} answered {text!r}, which is not an IPv4 address", hint=hint) from error
    except (OSError, HTTPError) as error:
        raise ClusterError(f"cannot find the address of this machine: {url}: {error}", hint=hint) from error


# --- permissions


def describe_permissions(clients: Clients, world: World) -> Permissions:
    """Returns the caller's permissions to launch the missing nodes and to terminate them.

    Tests the first way to launch in world.preflight. Raises boto3's errors, also for an account that cannot launch.
    """
    ec2, nodes = clients.ec2, world.state.nodes
    launch, ids = rehearsed_launch(world), [nodes[0].instance_id if nodes else _STAND_IN]
    has_group = any("Groups" in interface for interface in launch["NetworkInterfaces"])
    with bounded_pool() as pool:
        # A launch without a group uses the VPC's default group, to which the permission need not extend.
        in_group = None if has_group else _ON_GROUP
        tested = [
            pool.submit(_test, "ec2:RunInstances", partial(ec2.run_instances, **launch), stands_in=in_group),
            pool.submit(
                _test,
                "ec2:TerminateInstances",
                partial(ec2.terminate_instances, InstanceIds=ids),
                stands_in=None if nodes else _ANYTHING,
            ),
        ]
    found = [test.result() for test in tested]
    kinds = get_args(Permission)
    return Permissions(**{kind: tuple(action for action, one in found if one == kind) for kind in kinds})


def _test(action: str, call: Callable[..., object], *, stands_in: re.Pattern[str] | None) -> tuple[str, Permission]:
    """Makes a call as a dry run. Returns the action, or the one that AWS names, and whether it is allowed.

    stands_in: matches a refusal that may be only about a resource that stands in for the cluster's.
    """
    try:
        call(DryRun=True)
    except ClientError as error:
        code, words = error_code(error), str(error)
        if code in _ACCOUNT_STATES:
            raise
        if code == "DryRunOperation":
            return action, "allowed"
        is_about_stand_in = stands_in is not None and stands_in.search(words) and "explicit deny" not in words
        if code != "UnauthorizedOperation" or is_about_stand_in:
            return action, "unknown"
        return find_named_action(words) or action, "missing"
    raise AwsError(
        f"{action} was a dry run, but the service carried it out",
        hint="this is not AWS's EC2: check AWS_ENDPOINT_URL, and what was made there",
    )
