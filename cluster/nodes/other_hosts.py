"""Existing hosts (cloud = "hosts"): how this machine connects to them, and what `cluster down` cleans up."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack, closing

from bootstrap.homes import find_homes
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import on_all, try_on_all
from bootstrap.ssh.host import Host, Spec, parse_spec
from bootstrap.ssh.node_program import runtime_command
from bootstrap.ssh.other_hosts import (
    KEPT,
    REMOVED,
    SCRIPT_TIMEOUT_S,
    Memory,
    Remembered,
    parse_addresses,
    remember,
    render_release,
)
from bootstrap.ssh.user_ssh import Route, connect, find_route
from cluster.app import App
from foundation.errors import ClusterError, ConnectError
from foundation.progress import Event
from foundation.remote_command import run_program


def connect_to(host: Host) -> NodeConnection:
    """Connects to a host that find_host returned, as the user's ssh does. Raises ConnectError, ClusterError."""
    try:
        return connect(host, spec=_spec_of(host.spec))
    except ConnectError as error:
        if not is_here(host.address):
            raise
        raise ConnectError(
            f"{error.message}\n  this is the machine that the command runs on; it must accept ssh from itself, too",
            hint=error.hint,
        ) from error


def find_host(text: str) -> tuple[Host, Route]:
    """Returns one of the user's own hosts, and the route to it."""
    spec = _spec_of(text)
    route = find_route(spec)
    name = spec.host if spec.port in {None, 22} else f"{spec.host}:{spec.port}"
    host = Host(
        name=name,
        instance_id=name,
        address=route.hostname,
        private_ip="",
        user=route.user,
        is_head=False,
        port=route.port,
        spec=text,
    )
    return host, route


def is_here(address: str) -> bool:
    """Whether a host name is this machine's own, as far as this machine can tell."""
    own = socket.gethostname()
    return address in {own, own.partition(".")[0], "localhost"} or (find_address(address) or "").startswith("127.")


def _spec_of(text: str) -> Spec:
    spec = parse_spec(text)
    if spec is None:
        raise ClusterError(f'"{text}" is not of the form [user@]host[:port]')
    return spec


def find_address(name: str) -> str | None:
    """Returns the IPv4 address of a name; None if it has none. ps-lite supports only IPv4."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    return str(found[0][4][0]) if found else None


def ask_for_address(head: NodeConnection, name: str) -> str | None:
    """Returns the IPv4 address to which a name resolves on the head; None if it does not resolve."""
    output = head.run(run_program("getent", "ahostsv4", name), check=False, timeout_s=SCRIPT_TIMEOUT_S)
    return next(iter(parse_addresses(output.stdout)), None)


def memory_of(app: App) -> Memory:
    """Returns the file that lists the user's own hosts of this cluster."""
    return Memory(app.files.other_hosts, cluster=app.config.name)


def note_job(app: App, hosts: Sequence[Host], job: str) -> None:
    """Records, before a job starts, which existing hosts it runs on. Raises ClusterError."""
    own = [remember(host, jobs=(job,)) for host in hosts if host.spec]
    if own:
        memory_of(app).keep(own)


def release(app: App) -> tuple[list[str], dict[str, ClusterError]]:
    """Removes the cluster's files and key from the user's own hosts.

    Returns the cleaned hosts, and why the others are not. These stay remembered, and the next `cluster down` tries them
    again. A host that cannot be reached, as after an allocation, is clean if it has the home folder of a cleaned
    one. Raises ClusterError.
    """
    memory = memory_of(app)
    known = memory.read()
    done: list[str] = []

    def end_jobs(entry: Remembered) -> NodeConnection:
        connection = stack.enter_context(closing(connect_to(find_host(entry.spec)[0])))
        for job in entry.jobs:  # the head is gone: end what may still run before its files are deleted
            words = runtime_command("agent", "end", job, must_exist=False)
            connection.run(words, check=False, timeout_s=SCRIPT_TIMEOUT_S)
        return connection

    def clean(home: Sequence[NodeConnection]) -> None:
        for connection in home:
            try:
                script, what = render_release(known.mark), "the script that cleans up"
                answer = connection.ask(script, {REMOVED, KEPT}, timeout_s=SCRIPT_TIMEOUT_S, what=what)
            except ClusterError as error:
                failed[connection.host.spec] = error
                continue
            done.append(connection.host.spec)
            kept = "removed its key; kept ~/.cluster, which another cluster uses"
            what = kept if answer == KEPT else "removed all files"
            app.report(Event(kind="done", what=what, where=connection.host.name))

    with ExitStack() as stack:
        ended = try_on_all(known.hosts, end_jobs)
        found = zip(known.hosts, ended, strict=True)
        failed = {entry.spec: one for entry, one in found if isinstance(one, ClusterError)}
        homes = find_homes([one for one in ended if not isinstance(one, ClusterError)])
        on_all([*homes.values()], clean)
    cleaned = {one.home for one in known.hosts if one.spec in done} - {""}
    done += [one.spec for one in known.hosts if one.spec in failed and one.home in cleaned]
    memory.forget(done)
    return done, {spec: error for spec, error in failed.items() if spec not in done}
