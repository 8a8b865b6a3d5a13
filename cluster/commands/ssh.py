"""`cluster ssh`."""

import os
import sys

import click

from bootstrap.shell import render_ssh_command
from cluster.app import App, pass_app
from cluster.session import choose_nodes, describe_and_warn, find_host, open_connections
from provision.errors import ClusterError, UsageError


@click.command("ssh")
@click.argument("node", required=False)
@click.argument("words", metavar="", nargs=-1, type=click.UNPROCESSED)
@pass_app
def command(app: App, *, node: str | None, words: tuple[str, ...]) -> None:
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
        connections.get(host)  # it verifies and pins the host key, and says what is wrong better than ssh does
    ssh = render_ssh_command(host, private_key=app.files.private_key, known_hosts=app.files.known_hosts)
    app.close()
    sys.stdout.flush()
    try:
        os.execvp(ssh[0], ssh)  # noqa: S606 - the words go to ssh as they are
    except FileNotFoundError:
        raise ClusterError(
            "there is no `ssh` on this machine, which `cluster ssh` needs",
            hint="install OpenSSH's client: apt install openssh-client, dnf install openssh-clients",
        ) from None
