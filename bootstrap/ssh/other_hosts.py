"""The user's own hosts: the nodes of a cluster with cloud = "hosts".

They are set up like instances (apply.py). This module handles the differences: which hosts are allowed, how the head
logs in, the data about them on the user's machine, and the removal of everything.
"""

import re
import secrets
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct, structs
from msgspec.json import encode

from bootstrap.apply import ReadyNode, find_cluster_key, let_in, write_known_hosts
from bootstrap.ssh.host import Host
from bootstrap.ssh.keys import LOCK, MARK, authorized_line, known_hosts_text, rewrite_keys
from bootstrap.ssh.user_ssh import known_name
from foundation.decode import decode
from foundation.errors import ClusterError, ConfigError
from foundation.file_lock import locked
from foundation.files import write_whole
from foundation.progress import Report
from foundation.remote_command import RemoteCommand

KEPT_JOBS = 20
KNOWN_OTHERS = "known_hosts_of_others"
REMOVED, KEPT = "removed", "kept"
SCRIPT_TIMEOUT_S = 90.0


class Remembered(Struct, frozen=True, kw_only=True):
    """A host of the user's own that was, or may have been, set up.

    spec: its name in the hostfile. address, port: those at which the head reaches it. key: its host key; None keeps the
    known one. jobs: the ids of jobs that ran on it, the newest last. home: the name of its home folder; "" keeps the
    known one.
    """

    spec: str
    address: str
    port: int
    key: tuple[str, str] | None = None
    jobs: tuple[str, ...] = ()
    home: str = ""


class OtherHosts(Struct, frozen=True):
    """The other hosts of one cluster. nodes: the hosts of the last -H, in its order; they are the cluster's nodes.

    mark: ends the cluster's own line in the hosts' authorized_keys. No other cluster has the same one, whatever its
    name.
    """

    mark: str
    hosts: tuple[Remembered, ...]
    nodes: tuple[str, ...] = ()


class Memory:
    """The file with the other hosts of one cluster, in the cluster's folder on the user's machine."""

    def __init__(self, path: Path, *, cluster: str) -> None:
        self.path = path
        self._cluster = cluster

    def read(self) -> OtherHosts:
        """What the file says. Raises ClusterError for an invalid file."""
        try:
            return decode(self.path.read_bytes(), OtherHosts)
        except FileNotFoundError:
            return OtherHosts(mark=f"{MARK}-{self._cluster}-{secrets.token_hex(4)}", hosts=())
        except (OSError, ValueError) as error:
            path = shlex.quote(str(self.path))
            raise ClusterError(
                f"{self.path}: damaged: {error}",
                hint=f"mv {path} {path}.damaged; then remove the cluster's files from your own hosts by hand",
            ) from error

    def keep(self, hosts: Sequence[Remembered]) -> None:
        """Stores these hosts; they replace earlier entries. They are on disk before it returns."""
        with self._locked():
            known = self.read()
            merged = {entry.spec: entry for entry in known.hosts}
            for host in hosts:
                old = merged.get(host.spec)
                jobs = (*(old.jobs if old else ()), *host.jobs)[-KEPT_JOBS:]
                key, home = (host.key or old.key, host.home or old.home) if old else (host.key, host.home)
                merged[host.spec] = structs.replace(host, key=key, jobs=jobs, home=home)
            self._write(structs.replace(known, hosts=tuple(merged.values())))

    def keep_nodes(self, lines: Sequence[str]) -> None:
        """Stores the hosts of -H as the cluster's nodes. They are on disk before it returns."""
        with self._locked():
            known = self.read()
            if known.nodes != tuple(lines):
                self._write(structs.replace(known, nodes=tuple(lines)))

    def forget(self, specs: Sequence[str]) -> None:
        """Removes these hosts from the file. Removes the file with the last one. Raises ClusterError."""
        with self._locked():
            known = self.read()
            left = tuple(entry for entry in known.hosts if entry.spec not in specs)
            if left:
                self._write(structs.replace(known, hosts=left))
            else:
                self.path.unlink(missing_ok=True)
                with suppress(OSError):  # the folder may still have other files of the cluster
                    self.path.parent.rmdir()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds a lock against other threads and processes. The lock is on a folder, so it leaves no file.

        It is not on the cluster's own folder, because commands that set up its nodes hold that lock.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self.path.parent.parent):
            yield

    def _write(self, known: OtherHosts) -> None:
        write_whole(self.path, encode(known), to_disk=True)


def check_addresses(hosts: Sequence[Host], *, key: str) -> None:
    """Raises ConfigError for hosts that others cannot reach, and for two with the same address. Pure.

    key: the setting that lists the hosts.
    """
    seen: dict[str, str] = {}
    for host in hosts:
        if host.private_ip.startswith("127.") or host.private_ip == "0.0.0.0":  # noqa: S104 - nothing is bound here
            raise ConfigError(
                f'{key}: "{host.spec}" is {host.private_ip}, which no node can reach',
                hint="set HostName in your ssh_config to an address that the cluster's nodes reach",
            )
        other = seen.setdefault(host.private_ip, host.spec)
        if other != host.spec:
            raise ConfigError(
                f'{key}: "{host.spec}" and {other} are the same host ({host.private_ip}): the processes of a job find '
                "a host by its address",
                hint="name a host in one way, and repeat its line to run more processes there; for several hosts "
                "behind one address, set HostName in your ssh_config to each one's own, with ProxyJump",
            )


def let_head_in(nodes: Sequence[ReadyNode], memory: Memory, *, report: Report) -> None:
    """Lets the head, the first of the nodes, log in to all of them. Raises ClusterError and its kinds."""
    head = nodes[0]
    known = memory.read()
    # It may connect to other hosts from any of its addresses.
    output = head.connection.run(RemoteCommand("hostname -I"), check=False, timeout_s=SCRIPT_TIMEOUT_S).stdout
    addresses = dict.fromkeys((head.host.private_ip, *parse_addresses(output)))
    line = authorized_line(find_cluster_key(head), head_ip=",".join(addresses), mark=known.mark)

    now = [remember(node.host, key=node.connection.host_key, home=node.home) for node in nodes]
    memory.keep(now)
    let_in(nodes, line, mark=known.mark, report=report)
    # The new ones override old hosts at the same address.
    keys = {known_name(entry.address, entry.port): entry.key for entry in (*known.hosts, *now) if entry.key is not None}
    write_known_hosts(head, KNOWN_OTHERS, known_hosts_text(keys))


def parse_addresses(output: str) -> tuple[str, ...]:
    """The IPv4 addresses that `hostname -I` printed. Pure."""
    return tuple(word for word in output.split() if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){3}", word))


def remember(
    host: Host, *, key: tuple[str, str] | None = None, jobs: tuple[str, ...] = (), home: str = ""
) -> Remembered:
    """The entry for a host in the file. Pure."""
    return Remembered(spec=host.spec, address=host.private_ip, port=host.port, key=key, jobs=jobs, home=home)


def render_release(mark: str) -> RemoteCommand:
    """The script that removes a cluster's line and files from a host; it prints "removed" or "kept". Pure.

    Clusters share the files. The script keeps them if another cluster still has a line in authorized_keys.
    """
    own = shlex.quote(f" {mark}$")
    lines = (
        "set -eu",
        "umask 077",
        f'[ ! -d "$HOME/.cluster" ] || {{ {LOCK}; }}',
        'keys=$(readlink -f "$HOME/.ssh/authorized_keys") || :',  # without ~/.ssh, it fails
        f"answer={REMOVED} left=",
        f'if grep -E -e {shlex.quote(f" {MARK}(-[a-z0-9-]+)?$")} "$keys" 2>/dev/null | grep -q -v -e {own}; then',
        f"    answer={KEPT}",
        'elif [ -d "$HOME/.cluster" ]; then',  # first, as it may be what fills the disk
        '    chmod -R u+w "$HOME/.cluster" 2>/dev/null || :',
        # Files of set-up commands may belong to root.
        '    rm -rf "$HOME/.cluster" 2>/dev/null || sudo -n rm -rf "$HOME/.cluster" || left=1',
        "fi",
        f'if grep -q -e {own} "$keys" 2>/dev/null; then {rewrite_keys(mark)}; fi',
        '[ -z "$left" ]',
        "echo $answer",
    )
    return RemoteCommand("\n".join(lines))
