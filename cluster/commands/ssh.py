"""`cluster ssh`, `forward`, `cp` and `ssh-config`: OpenSSH's programs, with the cluster's key and pinned host keys."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from bootstrap.ssh.host import (
    Host,
    find_ssh_options,
    render_editor_links,
    render_scp_command,
    render_ssh_command,
    render_ssh_config,
)
from bootstrap.ssh.tunnel import LOCAL, check_free, explain_missing, keep_open, render_forward_command
from cluster.app import App, pass_app
from cluster.completion import NODE, NODE_OR_FILE
from cluster.session import describe_and_warn, source_of
from foundation.errors import ClusterError, NotFoundError, UsageError

_PORTS = re.compile(r"(?:([0-9]{1,5}):)?([0-9]{1,5})")
_ON_NODE = re.compile(r"((?:[A-Za-z_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5})?):(.*)", re.DOTALL)


@click.command("ssh", context_settings={"allow_interspersed_args": False})
@click.argument("node", required=False, type=NODE)
@click.argument("words", metavar="[COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@pass_app
def ssh(app: App, *, node: str | None, words: tuple[str, ...]) -> None:
    """Open a shell or run a command on a node.

    NODE defaults to the head. The node's Python environment is active, as in `cluster exec`. This runs OpenSSH's ssh
    with the cluster's key and the node's pinned host key; it reads nothing in ~/.ssh. Existing hosts are reached with
    your own ssh configuration. For options of ssh, see `cluster ssh-config`.
    """
    words = words[1:] if words[:1] == ("--",) else words
    is_terminal = sys.stdin.isatty() and (not words or sys.stdout.isatty())
    [host] = find_hosts(app, [node] if node else None)
    _run(app, render_ssh_command(host, words, options=find_options(app, host), is_terminal=is_terminal))


@click.command("forward")
@click.argument("words", metavar="[LOCAL:]PORT... [NODE]", nargs=-1, required=True, type=NODE)
@pass_app
def forward(app: App, *, words: tuple[str, ...]) -> None:
    """Forward ports of a node to this machine until Ctrl-C.

    NODE defaults to the head. What listens on PORT of the node, also if only on its loopback address, is reached at the
    same port, or LOCAL, of 127.0.0.1 here. A lost connection is opened again. The URL of each port is printed.
    """
    ports, node = read_ports(words)
    check_free(ports)
    [host] = find_hosts(app, [node] if node else None)

    def find_line() -> tuple[str, ...]:
        [now] = find_hosts(app, [host.name])
        return render_forward_command(now, ports, options=find_options(app, now))

    def show() -> None:
        app.print("\n".join(f"http://{LOCAL}:{here}/" for here in ports), wrapped=False)
        app.message(f"forwarding from {host.name} until Ctrl-C{app.reach}")

    line = render_forward_command(host, ports, options=find_options(app, host))
    with suppress(KeyboardInterrupt):  # the usual end
        keep_open(line, find_line=find_line, opened=show, report=app.report)


def read_ports(words: Sequence[str]) -> tuple[dict[int, int], str | None]:
    """Returns the ports on the node by those on this machine, and the name of the node or None. Pure.

    words: PORT or LOCAL:PORT, and after them the node, if it is named. Raises UsageError.
    """
    found = [_PORTS.fullmatch(word) for word in words]
    pairs = [(int(one[1] or one[2]), int(one[2])) for one in found if one is not None]
    names = words[len(pairs) :]
    if not pairs or None in found[: len(pairs)] or len(names) > 1:
        raise UsageError(
            "[LOCAL:]PORT... [NODE] must be ports, and then a node", hint="cluster forward 8081:8080 node-1"
        )
    for port in (port for pair in pairs for port in pair if not 0 < port < 1 << 16):
        raise UsageError(f"{port} is not a port: 1 to 65535")
    if len(dict(pairs)) < len(pairs):
        raise UsageError("two ports have the same port on this machine", hint="use LOCAL:PORT, as in 8081:8080")
    return dict(pairs), names[0] if names else None


@click.command("cp")
@click.option("-r", "-R", "-p", is_flag=True, expose_value=False, hidden=True)  # scp's: folders and times are kept
@click.argument("sources", metavar="SOURCE...", type=NODE_OR_FILE, nargs=-1, required=True)
@click.argument("target", metavar="TARGET", type=NODE_OR_FILE)
@pass_app
def cp(app: App, *, sources: tuple[str, ...], target: str) -> None:
    """Copy files to or from a node.

    NODE:PATH is a file or folder on a node; PATH is relative to the home folder there. This runs OpenSSH's scp.
    """
    name, there, to_node = read_paths(sources, target)
    missing = [source for source in sources if to_node and not Path(source).exists()]
    if missing:
        raise NotFoundError(f"{missing[0]}: no such file or folder here", hint=f"ls {Path.cwd()} shows what is here")
    [host] = find_hosts(app, [name])
    given, wanted = (sources, there[0]) if to_node else (there, target)
    line = render_scp_command(host, given, wanted, to_node=to_node, options=find_options(app, host))
    app.close()
    if shutil.which(line[0]) is None:
        raise explain_missing(line[0])
    if subprocess.call(line):
        what = f"scp could not copy {'to' if to_node else 'from'} {name}:{there[0]} (its message is above)"
        raise ClusterError(what, hint=f"cluster ssh {name} ls {shlex.quote(str(Path(there[0]).parent))}")


def read_paths(sources: Sequence[str], target: str) -> tuple[str, tuple[str, ...], bool]:
    """Returns (node, paths on it, whether they are the target) for the words of `cluster cp`.

    Pure. Raises UsageError.
    """
    from_nodes = [found for found in map(_ON_NODE.fullmatch, sources) if found is not None]
    to_node = _ON_NODE.fullmatch(target)
    if to_node is not None and not from_nodes:
        return to_node[1], (to_node[2],), True
    names = {found[1] for found in from_nodes}
    if to_node is None and len(from_nodes) == len(sources) and len(names) == 1:
        return names.pop(), tuple(found[2] or "." for found in from_nodes), False
    if to_node is None and not from_nodes:
        raise UsageError("neither SOURCE nor TARGET is on a node", hint="cluster cp node-0:PATH . copies from node-0")
    raise UsageError(
        "all files must be copied from this machine to one node, or from one node to this machine",
        hint="copy to this machine first, or use S3: cluster data put",
    )


@click.command("ssh-config")
@pass_app
def ssh_config(app: App) -> None:
    """Print an ssh configuration for the nodes.

    With it, ssh, scp, rsync and editors can reach the nodes. Print it again when a node gets another address, for
    example after `cluster stop --nodes` and `cluster start`. Comments at the end have links that open VS Code, Cursor
    and Zed on each node.
    """
    app.check_has_instances("ssh-config", instead="your own ssh configuration reaches the hosts: cluster status")
    hosts = find_hosts(app, None, all_nodes=True)
    named = {f"{app.config.name}-{host.name}": host for host in hosts}
    sections = [render_ssh_config(alias, host, options=find_options(app, host)) for alias, host in named.items()]
    links = [render_editor_links(alias, host.user) for alias, host in named.items()]
    app.print("\n\n".join([*sections, "# Links that open an editor on a node:", *links]), wrapped=False)


def find_hosts(app: App, names: Sequence[str] | None, *, all_nodes: bool = False) -> tuple[Host, ...]:
    """Returns the first of these nodes, or all, or the head without names. Verifies and pins their host keys.

    Raises ClusterError.
    """
    app.enter_cloud()
    nodes = describe_and_warn(app)
    chosen = nodes.choose(names or ())
    hosts = tuple(map(nodes.find_host, chosen if all_nodes else chosen[:1]))
    with source_of(app).open_connections() as connections:
        for host in hosts:
            connections.get(host)  # its errors are better than those of ssh
    return hosts


def find_options(app: App, host: Host) -> dict[str, str]:
    """Returns the options of ssh for a node, with the cluster's key and pinned host keys."""
    return find_ssh_options(host, private_key=app.files.private_key, known_hosts=app.files.known_hosts)


def _run(app: App, line: tuple[str, ...]) -> None:
    """Replaces this process with a program. Raises ClusterError if it is not installed."""
    app.close()
    sys.stdout.flush()
    try:
        os.execvp(line[0], line)  # noqa: S606 - the words are passed to ssh unchanged
    except FileNotFoundError:
        raise explain_missing(line[0]) from None
