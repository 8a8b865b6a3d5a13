"""Continues jobs that wait for nodes: a job that has lost some nodes, or the jobs of a lost head."""

from cluster.app import App
from cluster.jobs import ask_for_job
from cluster.nodes.ec2 import Ec2Nodes
from cluster.nodes.source import Nodes
from cluster.recovery.lost_head import continue_jobs, find_gone, look_for_lost_head
from cluster.recovery.replacement import continue_waiting
from cluster.session import describe
from foundation.errors import ClusterError


def complete_nodes(app: App, nodes: Nodes) -> Nodes:
    """Returns the nodes for another job, after replacing those that a job has lost, which continues first.

    Makes no call while no node is missing. If no nodes can be launched, the others are used. Raises ClusterError when
    the head is missing.
    """
    if not isinstance(nodes, Ec2Nodes) or not nodes.names:
        return nodes
    if len(nodes.names) >= app.config.provision.nodes and not find_gone(app, nodes.state):
        return nodes
    before = dict(app.overrides)
    lost = look_for_lost_head(app, nodes.state)
    continues = continue_jobs(app, lost, nodes.state)
    app.restore(before)  # continuing a job overrides [train] script
    if not continues and lost is not None and nodes.state.nodes[0].index > 0:
        raise ClusterError(f"the head of cluster {app.config.name} has ended", hint="cluster up")
    if not continues:
        job = ask_for_job(app, nodes)()
        continues = continue_waiting(app, None if job is None else job.record)
    return describe(app) if continues else nodes
