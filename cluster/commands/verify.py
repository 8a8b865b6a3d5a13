"""`cluster verify`."""

from dataclasses import asdict

import click

from bootstrap.verify import Verdict, verify
from cluster.app import App, pass_app
from cluster.session import ready_nodes
from provision.aws import make_clients
from provision.describe import describe_cluster
from provision.errors import ClusterError


@click.command("verify")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@pass_app
def command(app: App, *, as_json: bool) -> None:
    """Compute ones((2,3))*2+1 with MXNet on every node.

    On every GPU, or on the processor where there is none; the answer must be 3 everywhere.
    """
    app.enter_cloud()
    clients = make_clients(app.config.provision.region)
    state = describe_cluster(clients.ec2, name=app.config.name)
    with ready_nodes(app, state) as (nodes, _):
        verdicts = verify(nodes)
    if as_json:
        app.print_json([asdict(verdict) for verdict in verdicts])
    else:
        app.print(render_verdicts(verdicts))
    failed = [verdict for verdict in verdicts if verdict.error is not None]
    if failed:
        raise ClusterError(f"{len(failed)} of {len(verdicts)} devices failed: {failed[0].node}: {failed[0].error}")


def render_verdicts(verdicts: tuple[Verdict, ...]) -> str:
    """One line for each device. Pure."""
    lines = []
    for verdict in verdicts:
        result = "ones((2,3))*2+1 == 3" if verdict.error is None else f"FAILED: {verdict.error}"
        mxnet = f"MXNet {verdict.mxnet}" if verdict.mxnet else ""
        lines.append(f"{verdict.node:<10} {verdict.device:<8} {mxnet:<14} {result}".rstrip())
    return "\n".join(lines)
