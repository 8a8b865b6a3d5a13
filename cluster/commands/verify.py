"""`cluster verify`."""

import click

from bootstrap.container.check import check_containers
from bootstrap.verify.checks import check_clocks, check_connection
from bootstrap.verify.node_health import check_health, describe_health, find_unhealthy, keep_on_head
from bootstrap.verify.nodes import sort_checks
from bootstrap.verify.volumes import check_volumes
from cluster.app import App, pass_app
from cluster.containers import find_login
from cluster.nodes.health_check import find_hardware, ids_of
from cluster.nodes.verification import check_nodes, measure_nodes, show_checks
from cluster.session import describe_and_warn, ready_nodes, source_of


@click.command("verify")
@click.option("--deep", is_flag=True, help="Also measure disks, GPUs, S3 and the network, while no job runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@pass_app
def verify(app: App, *, deep: bool, as_json: bool) -> None:
    """Check the nodes' health, the framework, S3 access, ports, clocks, disks and volumes on all nodes.

    MXNet or PyTorch computes ones((2,3))*2+1 on each GPU, or on the CPU of nodes without one. Each node reads [data]
    url, and connects to every other node on the ports of MXNet's scheduler and parameter servers. With PyTorch, all
    nodes take part in an all_reduce. With [container] image, each node's engine runs it with the node's GPUs. On each
    of [[volumes]], one node writes a file, and the others read it.

    --deep measures all nodes at the same time, and names those that are far from the others.
    """
    app.enter_cloud()
    described = describe_and_warn(app)
    with ready_nodes(app, described) as (nodes, _):
        # What AWS refuses ends the command before the nodes are checked, and no check ends it.
        hardware, mounts = find_hardware(app, lambda: described), source_of(app).describe_mounts(described)
        checks = measure_nodes(app, nodes) if deep else check_nodes(app, nodes)
        findings, errors = describe_health(nodes)
        unhealthy = find_unhealthy(findings, hardware, with_clocks=False)  # a check of its own covers them
        keep_on_head(nodes[0].connection, findings, unhealthy, ids=ids_of(nodes), report=app.report)
        more = [
            check_health(name, found.report, unhealthy.get(name, ()), hardware.get(name))
            for name, found in findings.items()
        ]
        known = {check.node for check in checks if check.check == "connection"}
        more += [check_connection(name, error) for name, error in errors.items() if name not in known]
        more += check_clocks({name: found.offset for name, found in findings.items()})
        more += check_volumes(nodes, mounts)
        if app.config.container.image:
            more += check_containers(
                nodes,
                app.config.container,
                find_login=find_login(app),
                report=app.report,
            )
        checks = sort_checks((*checks, *more), names=[node.host.name for node in nodes])
    show_checks(app, checks, as_json=as_json)
