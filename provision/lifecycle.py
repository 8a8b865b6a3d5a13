"""`up` and `down`, each in two halves: one decides and can be shown, the other one acts."""

from datetime import UTC, datetime

from provision.apply import apply
from provision.aws import Clients
from provision.config import ProvisionConfig
from provision.describe import describe_cluster
from provision.errors import ConfigError
from provision.files import ClusterFiles
from provision.model import ClusterState
from provision.plan import Plan, plan_down, plan_up
from provision.preflight import describe_launch_target
from provision.progress import Report
from provision.receipt import Receipt, make_receipt
from provision.settle import wait_for_interrupted_launches


def prepare_up(clients: Clients, *, name: str, config: ProvisionConfig, files: ClusterFiles) -> Plan:
    """What `up` would do; only reads. Empty when the cluster runs as asked for.

    Raises ConfigError, AwsError, ClusterError: see plan_up and describe_launch_target.
    """
    if config.nodes == 0:
        raise ConfigError("[provision] nodes = 0: up needs at least 1", hint="set nodes, or: cluster up --nodes N")
    state = describe_cluster(clients.ec2, name=name)
    target = describe_launch_target(clients, config=config, state=state)
    return plan_up(name=name, config=config, state=state, target=target, local_key=files.find_public_key())


def up(plan: Plan, *, clients: Clients, files: ClusterFiles, report: Report) -> ClusterState:
    """Carries out a plan of prepare_up; the cluster as it then is. Raises as `apply` does."""
    apply(plan, clients=clients, files=files, report=report)
    return describe_cluster(clients.ec2, name=plan.cluster)


def prepare_down(clients: Clients, *, name: str, files: ClusterFiles, report: Report) -> Plan:
    """What `down` would do; only reads. Empty when nothing of the cluster is left.

    After an interrupted `up` it may wait, see wait_for_interrupted_launches. Raises AwsError, ClusterError.
    """
    wait_for_interrupted_launches(clients.ec2, name=name, files=files, report=report)
    return plan_down(describe_cluster(clients.ec2, name=name), local_files=files.exist)


def down(plan: Plan, *, clients: Clients, files: ClusterFiles, report: Report) -> Receipt:
    """Carries out a plan of prepare_down, and proves it by a fresh look. Raises as `apply` does."""
    apply(plan, clients=clients, files=files, report=report)
    return make_receipt(clients.ec2, plan=plan, now=datetime.now(UTC))
