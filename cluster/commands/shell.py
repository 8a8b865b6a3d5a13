"""`cluster exec` and `ssh`: a command, or a shell, on the nodes."""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from bootstrap.ssh.execute import Ending, choose_exit_code, execute
from bootstrap.ssh.host import Host, render_ssh_command
from cluster.app import App, pass_app
from cluster.session import choose_nodes, describe_and_warn, find_host, open_connections
from cluster.views.node_output import Collector, LinePrinter
from foundation.errors import ClusterError, UsageError
from provision.model import ClusterState


@click.command("exec", epilog="What follows -- is passed on word for word; for what a shell does: -- sh -c '...'")
@click.option("--node", "names", multiple=True, metavar="NAME", help="Only on this node; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON array, at the end.")
@click.argument("words", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@pass_app
def exec_(app: App, *, names: tuple[str, ...], as_json: bool, words: tuple[str, ...]) -> int:
    """Run a command on all nodes side by side.

    Every line of its output is shown as it comes, with the node's name in front. The exit code is that of the process
    that failed first, 1 when a node cannot be reached, else 0. Ctrl-C ends the command on all nodes.
    """
    if not words:
        raise UsageError("there is no command to run", hint="cluster exec -- COMMAND")
    app.enter_cloud()
    state = describe_and_warn(app)
    if as_json:
        collector = Collector()
        endings = _run(app, state, names, words, collector)
        app.print_json([describe_ending(ending, collector) for ending in endings])
    else:
        printer = LinePrinter(stdout=sys.stdout.fileno(), stderr=sys.stderr.fileno())
        endings = _run(app, state, names, words, printer)
    told = render_failures(endings)
    if told:
        app.say(told, style="red")
    return choose_exit_code(endings)


def _run(
    app: App, state: ClusterState, names: Sequence[str], words: Sequence[str], sink: LinePrinter | Collector
) -> tuple[Ending, ...]:
    nodes = choose_nodes(state, names)
    hosts: list[Host] = []
    endings: dict[str, Ending] = {}
    for node in nodes:
        try:
            hosts.append(find_host(app, node))
        except ClusterError as error:
            endings[node.name] = Ending(node=node.name, error=error)
    with open_connections(app, state) as connections:
        done = execute(hosts, words, open_connection=connections.get, sink=sink)
    endings |= {ending.node: ending for ending in done}
    return tuple(endings[node.name] for node in nodes)


def describe_ending(ending: Ending, collector: Collector) -> dict[str, Any]:
    """One node's result for --json."""
    return {
        "node": ending.node,
        "exit_code": ending.exit_code,
        "stdout": collector.text(ending.node, "stdout"),
        "stderr": collector.text(ending.node, "stderr"),
        "cut": collector.is_cut(ending.node),
        "error": ending.error.message if ending.error else None,
    }


def render_failures(endings: Sequence[Ending]) -> str:
    """Every node on which the command failed or could not be run; empty when there is none. Pure."""
    failed = [ending for ending in endings if ending.exit_code != 0]
    if not failed:
        return ""
    lines = [f"error: the command failed on {len(failed)} of {len(endings)} nodes:"]
    hints: dict[str, None] = {}
    for ending in failed:
        if ending.error is not None:
            lines.append(f"  {ending.error.message}")
            hints |= {ending.error.hint: None} if ending.error.hint else {}
        elif ending.signal is not None:
            lines.append(f"  {ending.node}: ended by {find_signal_name(ending.signal)} (exit code {ending.exit_code})")
        else:
            lines.append(f"  {ending.node}: exit code {ending.exit_code}")
    return "\n".join([*lines, *(f"  try: {hint}" for hint in hints)])


def find_signal_name(number: int) -> str:
    """SIGKILL for 9, and so on. Pure."""
    names = {signal.value: signal.name for signal in signal.Signals}
    return names.get(number, f"signal {number}")


@click.command("ssh")
@click.argument("node", required=False)
@click.argument("words", metavar="", nargs=-1, type=click.UNPROCESSED)
@pass_app
def ssh(app: App, *, node: str | None, words: tuple[str, ...]) -> None:
    """Open a shell on a node, the head by default.

    It is OpenSSH's own ssh, with the cluster's key and the node's pinned host key, and nothing of ~/.ssh.
    """
    if words:
        raise UsageError(
            "cluster ssh opens a shell, and runs no command", hint=f"cluster exec --node {node} -- {' '.join(words)}"
        )
    app.enter_cloud()
    state = describe_and_warn(app)
    host = find_host(app, choose_nodes(state, [node] if node else [])[0])
    with open_connections(app, state) as connections:
        connections.get(host)  # verifies and pins the host key, with better errors than ssh's
    line = render_ssh_command(host, private_key=app.files.private_key, known_hosts=app.files.known_hosts)
    app.close()
    sys.stdout.flush()
    try:
        os.execvp(line[0], line)  # noqa: S606 - the words go to ssh as they are
    except FileNotFoundError:
        raise ClusterError(
            "there is no `ssh` on this machine, which `cluster ssh` needs",
            hint="install OpenSSH's client: apt install openssh-client, dnf install openssh-clients",
        ) from None
