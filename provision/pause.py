"""`stop`, `start` and `allow`: what is there, and the plan; provision/apply.py carries it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foundation.errors import ClusterError, NotFoundError
from foundation.progress import Report
from provision.aws.clients import Clients, aws_errors
from provision.config import ProvisionConfig
from provision.describe import describe_cluster
from provision.files import ClusterFiles
from provision.membership import no_nodes
from provision.model import ClusterState, Node, SecurityGroup, SshAddress, format_indices, resource_name
from provision.plan import Plan, Step
from provision.preflight.describe import describe_caller
from provision.resources.launch_recovery import wait_for_interrupted_launches
from provision.resources.power import StartInstances, StopInstances, WaitForStopped
from provision.resources.resource import tagged
from provision.resources.security_group import plan_ssh_rules

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
    _refuse_no_nodes(state, "start")  # before the caller's address is asked for
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
    group = _find_group(state)
    ssh_from = describe_caller(clients, config).ssh_from
    return plan_allow(state, ssh_from=ssh_from), group, ssh_from


def describe_disks_gib(ec2: EC2Client, *, name: str) -> int:
    """The size of all disks of a cluster in GiB. One call per 500 disks. Raises AwsError."""
    with aws_errors(f"looking for the disks of cluster {name}"):
        pages = ec2.get_paginator("describe_volumes").paginate(
            Filters=[tagged(name)], PaginationConfig={"PageSize": 500}
        )
        volumes = [volume for page in pages for volume in page["Volumes"]]
    return sum(volume["Size"] for volume in volumes if volume["State"] not in {"deleting", "deleted"})


def plan_stop(state: ClusterState) -> Plan:
    """Stops what runs or is about to, and waits for what is stopping.

    Raises NotFoundError when there are no nodes, ClusterError when spot instances are among those that run: one-time
    spot instances, as this program launches them, cannot be stopped
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/stop-spot-instances.html).
    """
    _refuse_no_nodes(state, "stop")
    awake = tuple(node for node in state.nodes if node.state in {"pending", "running"})
    if spot := [node for node in awake if node.market == "spot"]:
        raise ClusterError(
            f"{_name(spot)} of cluster {state.name} {'is a spot instance' if len(spot) == 1 else 'are spot instances'}"
            ", which can be ended and not stopped",
            hint="cluster resize 0 (releases the instances and their disks, and keeps the cluster's definition)",
        )
    steps: list[Step] = [StopInstances(nodes=awake)] if awake else []
    if waiting := tuple(node.instance_id for node in state.nodes if node.state != "stopped"):
        steps.append(WaitForStopped(instance_ids=waiting))
    return Plan(cluster=state.name, steps=tuple(steps), left_alone=state.untrusted)


def plan_start(state: ClusterState, *, ssh_from: str, ssh_address: SshAddress, local_key: str | None) -> Plan:
    """Lets the caller in, starts what is stopped, and waits until all nodes run.

    What is stopping can be started only when it has stopped. ssh_from: a network. local_key: the public half of the
    private key on this machine. Raises NotFoundError when there are no nodes, ClusterError when this machine
    could not reach them anyway: started nodes cost money.
    """
    _refuse_no_nodes(state, "start")
    if local_key is None or (state.key_pair is not None and state.key_pair.public_key not in {None, local_key}):
        what = "is not on this machine" if local_key is None else "on this machine is another one"
        raise ClusterError(
            f"only the private key of cluster {state.name} can reach its nodes; it {what}",
            hint="start it from the machine that made it, or put the key back; or end all: cluster down",
        )
    steps = list(plan_ssh_rules(_find_group(state), ssh_from))
    if stopping := tuple(node.instance_id for node in state.nodes if node.state == "stopping"):
        steps.append(WaitForStopped(instance_ids=stopping))
    late = tuple(node for node in state.nodes if node.state != "running" or node.address(ssh_address) is None)
    if late:
        steps.append(StartInstances(nodes=late, public_address=ssh_address == "public"))
    return Plan(cluster=state.name, steps=tuple(steps), left_alone=state.untrusted)


def plan_allow(state: ClusterState, *, ssh_from: str) -> Plan:
    """Lets `ssh_from`, a network, in by ssh instead of the network that was let in before; rules by hand stay.

    Raises NotFoundError when the cluster has no security group.
    """
    return Plan(cluster=state.name, steps=plan_ssh_rules(_find_group(state), ssh_from))


def _refuse_no_nodes(state: ClusterState, verb: str) -> None:
    """Raises NotFoundError when the cluster has no nodes. verb: what was to be done to them."""
    if not state.nodes:
        raise no_nodes(state, what=f"to {verb}")


def _find_group(state: ClusterState) -> SecurityGroup:
    """The group that the nodes are in; without nodes, the one there is. Raises NotFoundError."""
    networks = {node.vpc_id for node in state.nodes if node.vpc_id}
    ours = [group for group in state.security_groups if group.ours]
    group = next((group for group in ours if not networks or group.vpc_id in networks), None)
    if group is None:
        what = f"the security group {resource_name(state.name)} is gone" if state.nodes else "there is no such cluster"
        raise NotFoundError(
            f"cluster {state.name}: {what}",
            hint="cluster down, then cluster up" if state.nodes else "cluster up",
        )
    return group


def _name(nodes: list[Node]) -> str:
    return f"node{'' if len(nodes) == 1 else 's'} {format_indices(node.index for node in nodes)}"
