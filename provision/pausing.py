"""`stop`, `start` and `allow`: the half that decides and can be shown; provision/apply.py has the one that acts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.aws import Clients, aws_errors
from provision.config import ProvisionConfig
from provision.describe import describe_cluster
from provision.files import ClusterFiles
from provision.model import TAG_NAME, SecurityGroup
from provision.plan import Plan
from provision.plan_power import find_group, plan_allow, plan_start, plan_stop, refuse_no_nodes
from provision.preflight.caller import describe_caller
from provision.progress import Report
from provision.settle import wait_for_interrupted_launches

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


def prepare_stop(clients: Clients, *, name: str, files: ClusterFiles, report: Report) -> Plan:
    """What `stop` would do; only reads. Empty when all nodes are stopped. Raises as plan_stop does, and AwsError.

    After an interrupted `up` it may wait, see wait_for_interrupted_launches.
    """
    wait_for_interrupted_launches(clients.ec2, name=name, files=files, report=report)
    return plan_stop(describe_cluster(clients.ec2, name=name, known=files.known_instances()))


def prepare_start(clients: Clients, *, name: str, config: ProvisionConfig, files: ClusterFiles) -> Plan:
    """What `start` would do; only reads. Empty when all nodes run. Raises as plan_start does, and AwsError."""
    state = describe_cluster(clients.ec2, name=name, known=files.known_instances())
    refuse_no_nodes(state, "start")  # before the caller's address is asked for
    return plan_start(
        state,
        ssh_from=describe_caller(clients, config).ssh_from,
        ssh_address=config.ssh_address,
        local_key=files.find_public_key(),
    )


def prepare_allow(
    clients: Clients, *, name: str, config: ProvisionConfig, files: ClusterFiles
) -> tuple[Plan, SecurityGroup, str]:
    """What `allow` would do, the security group as it is, and the network that is to be let in; only reads.

    Raises as plan_allow does, and AwsError.
    """
    state = describe_cluster(clients.ec2, name=name, known=files.known_instances())
    group = find_group(state)
    ssh_from = describe_caller(clients, config).ssh_from
    return plan_allow(state, ssh_from=ssh_from), group, ssh_from


def describe_disks_gib(ec2: EC2Client, *, name: str) -> int:
    """The size of all disks of a cluster in GiB. One call per 500 disks. Raises AwsError."""
    with aws_errors(f"looking for the disks of cluster {name}"):
        pages = ec2.get_paginator("describe_volumes").paginate(
            Filters=[{"Name": f"tag:{TAG_NAME}", "Values": [name]}], PaginationConfig={"PageSize": 500}
        )
        volumes = [volume for page in pages for volume in page["Volumes"]]
    return sum(volume["Size"] for volume in volumes if volume["State"] not in {"deleting", "deleted"})
