"""Nodes that are existing hosts (cloud = "hosts"), which the user reaches with ssh. Does not use AWS."""

import os
import re
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import Connections, raise_failures, try_on_all
from bootstrap.ssh.host import Host, parse_spec
from bootstrap.ssh.host_list import find_batch_job
from bootstrap.ssh.other_hosts import SCRIPT_TIMEOUT_S, check_addresses, let_head_in, remember
from cluster.app import App
from cluster.nodes.other_hosts import ask_for_address, connect_to, find_address, find_host, memory_of
from cluster.nodes.source import Nodes, NodeSource
from foundation.errors import ClusterError, ConfigError, ConnectError, UsageError
from foundation.remote_command import Quoted, RemoteCommand
from foundation.thread_pool import bounded_pool
from provision.volumes.source import MountSource, plan_mount
from train.job.config import TrainConfig
from train.job.placement import choose_hosts

NAMES, LAST = "[hosts] names", "the hosts of the last -H"
LIST_HINT = (
    'list them in cluster.toml: [hosts] names = ["me@gpu1", "gpu2"]; or: cluster up -H FILE; or in an allocation: '
    "cluster up -H slurm (or pbs, sge)"
)


class HostList(Struct, frozen=True, kw_only=True):
    """The hosts in the user's order; a host is repeated for more processes.

    key: where they are listed, for messages.
    """

    key: str
    lines: tuple[str, ...]


class HostSource(NodeSource):
    """The source of nodes that are existing hosts. Connections use the user's own ssh configuration.

    The hosts are those in [hosts] names; without names, those in [train] hosts or -H, or else those of the last command
    with -H.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    def describe(self) -> Nodes:
        """Returns the hosts as listed, the head first, with the addresses that this machine finds. It connects to none.

        Raises ClusterError, also without hosts.
        """
        name, listed = self._app.config.name, self._find_list()
        missing = ConfigError(f'cloud = "hosts", and cluster {name} has no hosts', hint=LIST_HINT)
        if not listed.lines:
            raise missing
        routes = [find_host(spec) for spec in dict.fromkeys(listed.lines)]
        with bounded_pool() as pool:
            addresses = list(pool.map(lambda found: find_address(found[0].address), routes))
        hosts: list[Host] = []
        problems: dict[str, ClusterError] = {}
        for number, ((host, route), address) in enumerate(zip(routes, addresses, strict=True)):
            if host.name in {other.name for other in hosts}:
                raise ConfigError(
                    f'{listed.key}: "{host.spec}" and another line are the same host',
                    hint=f'name it in one way, such as "{host.spec}"; to run more processes there, repeat that entry',
                )
            if address is None and not route.proxied:  # the head may resolve a name behind a proxy
                problems[host.name] = _not_resolved(host, key=listed.key)
            hosts.append(replace(host, private_ip=address or "", is_head=number == 0))
        names = tuple(host.name for host in hosts)
        return Nodes(
            cluster=name,
            missing=missing,
            names=names,
            hosts={host.name: host for host in hosts},
            running=names,
            problems=problems,
            problem=_find_problem(hosts, key=listed.key),
            job_hosts=listed.lines,
            aliases=_find_aliases(hosts),
        )

    def _find_list(self) -> HostList:
        config = self._app.config
        if config.hosts.names:
            return HostList(key=NAMES, lines=config.hosts.names)
        if config.train.hosts:
            return HostList(key="-H", lines=config.train.hosts)
        return HostList(key=LAST, lines=memory_of(self._app).read().nodes)

    def connect(self, host: Host, *, wait_s: float) -> NodeConnection:  # noqa: ARG002 - hosts do not boot
        """Connects as `ssh` does. Raises ConnectError, ClusterError."""
        return connect_to(host)

    def open_for_set_up(self, find_nodes: Callable[[], Nodes], *, wait_s: float) -> Connections:  # noqa: ARG002 - hosts do not boot
        """Returns connections to hosts, which are remembered until `cluster down`.

        Raises ClusterError for hosts that cannot be used.
        """
        find_nodes().find_hosts()  # before anything is changed
        listed, within = self._find_list(), find_batch_job(os.environ)
        if within and listed.key == LAST and not set(listed.lines).issubset(within.hosts):
            raise UsageError(
                f"{LAST} are not those of job {within.number}, in whose allocation this command runs",
                hint=f"-H {within.scheduler} takes the hosts of this allocation",
            )
        if not self._app.config.hosts.names:
            memory_of(self._app).keep_nodes(listed.lines)
        return Connections(self._connect_and_remember)

    def _connect_and_remember(self, host: Host) -> NodeConnection:
        """Connects to a host, and remembers it before anything on it is changed. Raises ConnectError, ClusterError."""
        connection = connect_to(host)
        memory_of(self._app).keep([remember(host, key=connection.host_key)])
        return connection

    def settle(self, hosts: tuple[Host, ...], connections: Connections) -> tuple[Host, ...]:
        """Returns the hosts with addresses that the other hosts can reach. Raises ClusterError.

        The head is asked for the addresses that this machine cannot find. On a machine, its own name often resolves to
        a loopback address.
        """
        if not any(is_unknown(host.private_ip) for host in hosts):
            return hosts
        key = self._find_list().key
        head, *others = hosts
        connection = connections.get(head)
        found = []
        for host in others:
            address = host.private_ip
            if is_unknown(address):
                address = ask_for_address(connection, host.address) or ""
            if is_unknown(address):
                raise ConfigError(
                    f'{key}: "{host.spec}" is {address or "unknown"} on {head.name}, which cannot reach it',
                    hint=f"set HostName in your ssh_config to an address that {head.name} reaches",
                )
            found.append(replace(host, private_ip=address))
        if is_unknown(head.private_ip):
            head = replace(head, private_ip=_ask_for_own_address(connection, [host.private_ip for host in found]))
        settled = (head, *found)
        check_addresses(settled if found else (), key=key)
        return settled

    def let_head_in(self, nodes: Sequence[ReadyNode]) -> None:
        """Lets the head, the first of these nodes, log in to all of them. Raises ClusterError or a subclass."""
        let_head_in(nodes, memory_of(self._app), report=self._app.report)

    def describe_mounts(self, nodes: Nodes) -> tuple[MountSource, ...]:  # noqa: ARG002 - hosts have no EC2 disks
        """Returns the mounts in cluster.toml."""
        config = self._app.config
        return tuple(plan_mount(volume, region=config.provision.region) for volume in config.volumes)


def leave_out_silent(
    nodes: Nodes, hosts: Sequence[Host], connections: Connections, *, train: TrainConfig, warn: Callable[[str], None]
) -> tuple[Host, ...]:
    """Connects to existing hosts, and returns those that answer. Warns of the others, and excludes them from `nodes`.

    hosts: the head first. Raises ClusterError for the head, and for hosts that the job cannot do without.
    """
    head = hosts[0].name
    lines = train.hosts if train.hosts or train.nodes in ("current", "requested") else (head,)
    needed = {head, *(host.name for host in choose_hosts(lines, hosts))}
    reached = [*zip([host.name for host in hosts], try_on_all(hosts, connections.get), strict=True)]
    silent = {name: one for name, one in reached if isinstance(one, ConnectError) and name not in needed}
    raise_failures([one for name, one in reached if name not in silent])
    for error in silent.values():
        warn(f"left out: {error.message}")
    nodes.excluded |= silent.keys()
    return tuple(host for host in hosts if host.name not in silent)


def is_unknown(address: str) -> bool:
    """Whether an address is of no use to other hosts: it is empty, 0.0.0.0 or a loopback address. Pure."""
    return not address or address.startswith("127.") or address == "0.0.0.0"  # noqa: S104 - nothing is bound here


def _find_problem(hosts: Sequence[Host], *, key: str) -> ClusterError | None:
    """Returns why a job cannot use all of these hosts: two are the same, or others cannot reach one."""
    try:
        check_addresses([host for host in hosts if not is_unknown(host.private_ip)], key=key)
    except ClusterError as error:
        return error
    return None


def _find_aliases(hosts: Sequence[Host]) -> dict[str, str]:
    """Returns hosts' names by their lines in the list, and by the hosts in these lines: the first of several."""
    aliases: dict[str, str] = {}
    for host in hosts:
        spec = parse_spec(host.spec)
        for word in (host.spec, spec.host if spec is not None else host.name):
            aliases.setdefault(word, host.name)
    return aliases


def _not_resolved(host: Host, *, key: str) -> ConfigError:
    spec = parse_spec(host.spec)
    named = spec.host if spec is not None else host.spec
    via = f" (HostName {host.address} in your ssh_config)" if host.address != named else ""
    return ConfigError(
        f'{key}: "{host.spec}": this machine cannot resolve the name{via}',
        hint=f"correct the name in cluster.toml or in the file of -H, or add it to your ssh_config: ssh -G {named}",
    )


def _ask_for_own_address(head: NodeConnection, others: Sequence[str]) -> str:
    """Returns the head's IPv4 address in the network of the other hosts; a lone head may use its loopback address.

    Raises ClusterError when it has none.
    """
    towards = Quoted(others[0] if others else "192.0.2.1")
    command = RemoteCommand("ip -4 -o route get ", towards, " 2>/dev/null || hostname -I")
    output = head.run(command, check=False, timeout_s=SCRIPT_TIMEOUT_S).stdout
    address = parse_own_address(output)
    if address is None and others:
        raise ClusterError(
            f"{head.host.name}: cannot tell its address in the network of {others[0]}",
            hint=f"set HostName for {head.host.name} in your ssh_config to that address",
        )
    return address or "127.0.0.1"


def parse_own_address(output: str) -> str | None:
    """Returns the source address in the output of `ip route get`, or the first one in that of `hostname -I`. Pure."""
    found = re.search(r"\bsrc ([0-9.]+)", output) or re.match(r"\s*([0-9]+(?:\.[0-9]+){3})\b", output)
    return found[1] if found is not None and not is_unknown(found[1]) else None
