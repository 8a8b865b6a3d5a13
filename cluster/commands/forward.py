"""`cluster forward`: ports of a node on this machine."""

import re
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from bootstrap.ssh.tunnel import LOCAL, check_free, keep_open, render_forward_command
from cluster.app import App, pass_app
from cluster.commands.ssh import find_hosts, find_options
from cluster.completion import NODE
from foundation.errors import UsageError

_PORTS = re.compile(r"(?:([0-9]{1,5}):)?([0-9]{1,5})")


@click.command("forward")
@click.option("--local-port", type=int, metavar="PORT", help="The port on this machine, if it is another one.")
@click.argument("words", metavar="[LOCAL:]PORT... [NODE]", nargs=-1, required=True, type=NODE)
@pass_app
def forward(app: App, *, local_port: int | None, words: tuple[str, ...]) -> None:
    """Forward ports of a node to this machine until Ctrl-C.

    NODE defaults to the head. What listens on PORT of the node, also if only on its loopback address, is reached at the
    same port, or LOCAL, of 127.0.0.1 here. A lost connection is opened again. The URL of each port is printed.
    """
    ports, node = read_ports(words, local_port=local_port)
    check_free(ports)
    [host] = find_hosts(app, [node] if node else None)

    def show() -> None:
        app.print("\n".join(f"http://{LOCAL}:{here}/" for here in ports), wrapped=False)
        sys.stdout.flush()
        app.say(f"forwarding from {host.name} until Ctrl-C")

    line = render_forward_command(host, ports, options=find_options(app, host))
    with suppress(KeyboardInterrupt):  # the usual end
        keep_open(line, opened=show, report=app.report)


def read_ports(words: Sequence[str], *, local_port: int | None = None) -> tuple[dict[int, int], str | None]:
    """Returns the ports on the node by those on this machine, and the name of the node or None.

    words: PORT or LOCAL:PORT, and after them the node, if it is named. local_port: LOCAL for the only PORT. Pure.
    Raises UsageError.
    """
    found = [_PORTS.fullmatch(word) for word in words]
    pairs = [(int(one[1] or one[2]), int(one[2])) for one in found if one is not None]
    names = [word for word, one in zip(words, found, strict=True) if one is None]
    if not pairs or names != list(words[len(pairs) :]) or len(names) > 1:
        raise UsageError(
            "these words must be PORT or LOCAL:PORT, and then a node", hint="cluster forward 6006 8081:8080 node-1"
        )
    if local_port is not None:
        if len(pairs) > 1 or ":" in words[0]:
            raise UsageError("--local-port is for a single PORT", hint="use LOCAL:PORT for each port")
        pairs = [(local_port, pairs[0][1])]
    wrong = [port for pair in pairs for port in pair if not 0 < port < 1 << 16]
    if wrong:
        raise UsageError(f"{wrong[0]} is not a port: 1 to 65535")
    if len(dict(pairs)) < len(pairs):
        raise UsageError("two ports have the same port on this machine", hint="use LOCAL:PORT, as in 8081:8080")
    return dict(pairs), names[0] if names else None
