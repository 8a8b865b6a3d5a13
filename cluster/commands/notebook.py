"""`cluster notebook`: JupyterLab on a node, as a job beside the others, and its port on this machine."""

import secrets
from collections.abc import Sequence

import click
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.notebook import COMMAND, Server, find_server, open_page, place_notebook
from bootstrap.ssh.tunnel import LOCAL, ProgramEnded, find_free, keep_open, render_forward_command
from cluster.app import App, if_interrupted, pass_app
from cluster.commands.ssh import find_options
from cluster.completion import NODE
from cluster.jobs import ask_head, end_job, open_head
from cluster.nodes.source import Nodes
from cluster.session import describe, describe_and_warn, source_of
from cluster.submission.request import TrainRequest
from cluster.submission.submit import submit
from foundation.errors import ClusterError, NotFoundError
from foundation.waiting import poll
from node.protocol import Order
from train.follow.records import JobRecord

START_TIMEOUT_S = 120.0
# Instead of [train]: one process on one node, without batches, that is not started again elsewhere.
SETTINGS = {"name": "notebook", "launcher": "env", "workers": 1, "servers": "auto", "processes": "auto", "cwd": "."}
SETTINGS |= {"nodes": "current", "max_duration": "none", "stall_timeout": "none", "on_node_loss": "fail"}
SETTINGS |= {"restarts_on_error": 0, "on_stall": "end", "p3": False, "gc_type": "none"}
SETTINGS |= {"queue": False, "sync_dst_dir": ""}  # the job that runs beside it has its files there


@click.command("notebook")
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@click.option("--stop", "stops", is_flag=True, help="End the notebook that runs on the node.")
@click.argument("node", required=False, type=NODE)
@pass_app
def notebook(app: App, *, opens: bool, stops: bool, node: str | None) -> None:
    """Run JupyterLab on a node, and forward it to this machine until Ctrl-C.

    NODE defaults to the head. The notebook is a job: it keeps running when this command ends, and the same command
    attaches to it again. Its URL, with a token, is printed.
    """
    app.enter_cloud()
    nodes = describe_and_warn(app)
    name = nodes.choose([node] if node else ())[0]
    job = _find(app, nodes, name)
    if stops:
        if job is None:
            raise NotFoundError(f"no notebook runs on {name}", hint="cluster jobs")
        with open_head(app, nodes) as head:
            end_job(app, head, job.id)
        app.print(f"the notebook on {name} has ended: job {job.id}")
        return
    if job is None:
        start(app, nodes, name)
    server = wait_for_server(app, nodes, name)
    attach(app, nodes, name, server, opens=opens)


def _find(app: App, nodes: Nodes, node: str) -> JobRecord | None:
    """The newest notebook that runs on a node, or None."""
    with open_head(app, nodes) as head:
        found = (record for record in ask_head(head) if record.spec.beside and not record.has_ended)
        return next((one for one in found if any(host.name == node and host.workers for host in one.nodes)), None)


def start(app: App, nodes: Nodes, node: str) -> None:
    """Submits the job. Raises ClusterError or a subclass."""
    if not app.has_instances:  # without [hosts] names, those in [train] hosts would become the cluster's
        app.override("hosts.names", list(nodes.job_hosts))
    for key, value in {**SETTINGS, "hosts": [node]}.items():
        app.override(f"train.{key}", value)
    app.override("container.image", "")
    app.is_brief = True

    def complete(order: Order, ready: Sequence[ReadyNode]) -> None:
        target = next(one for one in ready if one.host.name == node)
        env = place_notebook(target, job=order.spec.id, report=app.report)
        order.spec = replace(order.spec, beside=True)
        order.env = {**order.env, **env}
        order.secrets = {**order.secrets, "JUPYTER_TOKEN": secrets.token_urlsafe(32)}

    submit(app, TrainRequest(overrides={}, command=COMMAND), detach=True, complete=complete)


def wait_for_server(app: App, nodes: Nodes, node: str) -> Server:
    """Waits until the notebook's JupyterLab listens. Raises ClusterError."""
    with if_interrupted(f"cluster notebook {node} attaches to it"), source_of(app).open_connections() as connections:
        connection = connections.get(nodes.find_host(node))

        def find() -> Server | None:
            job = _find(app, nodes, node)
            if job is None:
                raise ClusterError(f"the notebook on {node} has ended", hint="cluster logs notebook")
            return find_server(connection, job.id)

        found = poll(find, timeout_s=START_TIMEOUT_S)
    if found is None:
        raise ClusterError(f"the notebook on {node} does not listen", hint="cluster logs notebook")
    return found


def attach(app: App, nodes: Nodes, node: str, server: Server, *, opens: bool) -> None:
    """Forwards a notebook's port to this machine until Ctrl-C. Raises ClusterError."""
    host, port = nodes.find_host(node), find_free(server.port)
    url, page = f"http://{LOCAL}:{port}/lab?token={server.token}", app.files.root / f"notebook-{node}.html"

    def show() -> None:
        app.print(url, wrapped=False)
        app.message(f"JupyterLab runs on {node}, and is forwarded until Ctrl-C{app.reach}")
        if opens:
            open_page(page, url)

    line = render_forward_command(host, {port: server.port}, options=find_options(app, host), pid=server.pid)

    def find_line() -> tuple[str, ...]:
        if _find(app, describe(app), node) is None:  # a node that was stopped has another address, but no notebook
            raise NotFoundError(f"the notebook on {node} has ended", hint="cluster logs notebook")
        return line

    try:
        keep_open(line, find_line=find_line, opened=show, report=app.report)
    except ProgramEnded:
        app.message(f"the notebook on {node} has ended: cluster logs notebook shows why")
    except KeyboardInterrupt:  # the usual end
        app.message(f"the notebook keeps running: cluster notebook {node} attaches to it, --stop ends it")
    finally:
        page.unlink(missing_ok=True)
