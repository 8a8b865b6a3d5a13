"""Hosts that are not the cluster's and that a job runs on all the same: which these are, and what is done to them.

They are set up as nodes are (apply.py). What is different is here: who may be one, how the head is let in, what is
remembered of them on the user's machine, and how all of it is taken back.
"""

import difflib
import fcntl
import json
import os
import secrets
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bootstrap.apply import ReadyNode, find_cluster_key
from bootstrap.host import Host
from bootstrap.internal_ssh import MARK, authorized_line, known_hosts_text
from bootstrap.side_by_side import on_all
from bootstrap.user_ssh import Spec, parse_spec
from provision.errors import ClusterError, ConfigError
from provision.progress import Event, Report
from provision.whole_file import write_whole

KEPT_JOBS = 20
KNOWN_OTHERS = "known_hosts_of_others"
KEPT = "kept"
SCRIPT_TIMEOUT_S = 90.0
_LOCK = 'exec 9<"$HOME/.cluster" && flock --timeout 60 9'


@dataclass(frozen=True, kw_only=True, slots=True)
class Remembered:
    """A host of the user's own that was set up, or may have been.

    spec: as he named it. address, port, key: where the head reaches it, and its host key, None where it is not told
    anew. jobs: those that have run there, the newest last.
    """

    spec: str
    address: str
    port: int
    key: tuple[str, str] | None = None
    jobs: tuple[str, ...] = ()


class Memory:
    """The other hosts of one cluster, in a file of its folder on the user's machine.

    `mark` ends the cluster's own line in authorized_keys there: no other cluster has the same one, whatever its name.
    """

    def __init__(self, path: Path, *, cluster: str) -> None:
        self.path = path
        self._cluster = cluster

    def read(self) -> tuple[str, tuple[Remembered, ...]]:
        """The mark, and the hosts. Raises ClusterError for a file that makes no sense."""
        try:
            found = json.loads(self.path.read_bytes())
            hosts = tuple(
                Remembered(
                    spec=str(entry["spec"]),
                    address=str(entry["address"]),
                    port=int(entry["port"]),
                    key=(str(entry["key"][0]), str(entry["key"][1])) if entry["key"] else None,
                    jobs=tuple(map(str, entry["jobs"])),
                )
                for entry in found["hosts"]
            )
            return str(found["mark"]), hosts
        except FileNotFoundError:
            return f"{MARK}-{self._cluster}-{secrets.token_hex(4)}", ()
        except OSError as error:
            raise ClusterError(f"{self.path}: cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ClusterError(
                f"{self.path}: damaged: {error!r}",
                hint=f"rm {shlex.quote(str(self.path))}; what is on hosts of your own has then to be removed by hand",
            ) from error

    def keep(self, hosts: Sequence[Remembered]) -> None:
        """Remember these, in place of what is known of the same. On the disk before it returns. Raises ClusterError."""
        with self._locked():
            mark, known = self.read()
            merged = {entry.spec: entry for entry in known}
            for host in hosts:
                old = merged.get(host.spec)
                jobs = (*(old.jobs if old else ()), *host.jobs)[-KEPT_JOBS:]
                merged[host.spec] = replace(host, key=host.key or (old.key if old else None), jobs=jobs)
            self._write(mark, tuple(merged.values()))

    def forget(self, specs: Sequence[str]) -> None:
        """Remember these no more; the file goes with the last one. Raises ClusterError."""
        with self._locked():
            mark, known = self.read()
            left = tuple(entry for entry in known if entry.spec not in specs)
            if left:
                self._write(mark, left)
            else:
                self.path.unlink(missing_ok=True)
                with suppress(OSError):  # the cluster's other files are still there
                    self.path.parent.rmdir()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One at a time, of this process's threads and of others: the lock is on a folder, and leaves no file.

        Not on the cluster's own: who sets its nodes up has that one.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = os.open(self.path.parent.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ClusterError(f"cannot use {self.path.parent}: {error.strerror}") from error
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _write(self, mark: str, hosts: Sequence[Remembered]) -> None:
        text = json.dumps({"mark": mark, "hosts": [asdict(host) for host in hosts]}, indent=1)
        try:
            write_whole(self.path, text.encode(), to_disk=True)
        except OSError as error:
            raise ClusterError(f"cannot write {self.path}: {error.strerror}") from error


def choose_others(lines: Sequence[str], nodes: Sequence[Host], *, launcher: str) -> dict[str, Spec]:
    """Which lines of a hostfile are hosts of the user's own, each once, in their order. Pure.

    Lines that name a node are left to who places the job. Raises ConfigError.
    """
    names = {name: node for node in nodes for name in (node.name, node.private_ip, node.address)}
    others: dict[str, Spec] = {}
    for line in lines:
        spec = parse_spec(line)
        if spec is None:
            raise ConfigError(f'train.hosts: "{line}" is neither a node nor a [user@]host[:port]', hint=_listed(nodes))
        node = names.get(spec.host)
        if node is None:
            others[line] = spec
        elif spec.user is not None or spec.host not in (node.name, node.private_ip):
            raise ConfigError(
                f'train.hosts: "{line}" is {node.name} of this cluster', hint=f'name it "{node.name}" in the hostfile'
            )
    if others and launcher != "ssh":
        why = "mpirun starts the same command line everywhere" if launcher == "mpi" else "it runs all on the head"
        raise ConfigError(
            f'train.launcher = "{launcher}" goes with nodes of the cluster alone ({why}), and train.hosts names '
            f"{next(iter(others))}",
            hint="cluster train --launcher ssh",
        )
    return others


def no_such_host(line: str, hostname: str, nodes: Sequence[Host]) -> ConfigError:
    """The error for a name that leads nowhere. Pure."""
    host = line.rpartition("@")[2].partition(":")[0]
    nearest = difflib.get_close_matches(host, [node.name for node in nodes], n=1)
    meant = f'; did you mean "{nearest[0]}"?' if nearest else ""
    via = f" (HostName {hostname} in your ssh_config)" if hostname != host else ""
    return ConfigError(
        f'train.hosts: "{line}" is no node of this cluster, and no host that this machine knows{via}{meant}',
        hint=_listed(nodes),
    )


def _listed(nodes: Sequence[Host]) -> str:
    listed = ", ".join(f"{node.name} ({node.private_ip})" for node in nodes)
    return f"one of: {listed}; or what ssh reaches from here, as [user@]host[:port]"


def check_addresses(others: Sequence[Host], nodes: Sequence[Host]) -> None:
    """Whether others can reach each of these, and it is told apart by its address. Pure. Raises ConfigError."""
    seen = {address: node.name for node in nodes for address in (node.private_ip, node.address)}
    for host in others:
        if host.private_ip.startswith("127.") or host.private_ip == "0.0.0.0":  # noqa: S104 - nothing is bound here
            raise ConfigError(
                f'train.hosts: "{host.spec}" is {host.private_ip}, where no node reaches it',
                hint="HostName in your ssh_config has to be an address that the cluster's nodes reach",
            )
        other = seen.setdefault(host.private_ip, host.spec)
        if other != host.spec:
            raise ConfigError(
                f'train.hosts: "{host.spec}" and {other} are the same host ({host.private_ip})',
                hint="write a host in one way; to run more processes there, the same line several times",
            )


def let_head_in(nodes: Sequence[ReadyNode], memory: Memory, *, report: Report) -> None:
    """Let the head reach the other hosts among `nodes`, the cluster's head first. Raises ClusterError's kinds."""
    head, others = nodes[0], [node for node in nodes if node.host.spec]
    mark, remembered = memory.read()
    addresses = dict.fromkeys((head.host.private_ip, head.host.address))
    line = authorized_line(find_cluster_key(head), head_ip=",".join(addresses), mark=mark)

    def let_in(node: ReadyNode) -> None:
        said = node.connection.run(
            render_let_in(line, mark=mark), timeout_s=SCRIPT_TIMEOUT_S, what="the script that lets the head in"
        )
        if said.stdout.strip():
            report(Event(kind="done", what="may be reached by the head", where=node.host.name))

    on_all(others, let_in, name=lambda node: node.host.name)
    now = [remember(node.host, key=node.connection.host_key) for node in others]  # they win, at addresses used again
    text = known_hosts_text({_known_name(entry): entry.key for entry in (*remembered, *now) if entry.key is not None})
    place = f'"$HOME/.cluster/ssh/{KNOWN_OTHERS}"'
    script = f"umask 077; printf %s {shlex.quote(text)} >{place}.new && mv {place}.new {place}"
    head.connection.run(script, timeout_s=SCRIPT_TIMEOUT_S, what="the script that pins host keys")


def remember(host: Host, *, key: tuple[str, str] | None = None, jobs: tuple[str, ...] = ()) -> Remembered:
    """What is to be remembered of a host. Pure."""
    return Remembered(spec=host.spec, address=host.private_ip, port=host.port, key=key, jobs=jobs)


def _known_name(entry: Remembered) -> str:
    return entry.address if entry.port == 22 else f"[{entry.address}]:{entry.port}"


def render_let_in(line: str, *, mark: str) -> str:
    """The script that puts the cluster's line into authorized_keys; it says something when it has changed it. Pure.

    Everything else in the file stays as it is; where it is a link, its target is changed.
    """
    return "\n".join(
        [
            "set -eu",
            "umask 077",
            _LOCK,
            'mkdir -p "$HOME/.ssh"',
            'keys=$(readlink -f "$HOME/.ssh/authorized_keys")',
            '[ -e "$keys" ] || : >"$keys"',
            f'[ "$(grep -e {shlex.quote(f" {mark}$")} "$keys" || :)" != {shlex.quote(line)} ] || exit 0',
            f'{{ {_without(mark)}; echo {shlex.quote(line)}; }} >"$keys.{mark}"',
            f'mv "$keys.{mark}" "$keys"',
            "echo changed",
            "",
        ]
    )


def _without(mark: str) -> str:
    """The words that print authorized_keys without a cluster's line, each of its lines whole. Pure."""
    return f'{{ grep -v -e {shlex.quote(f" {mark}$")} "$keys" || :; }}'


def render_release(mark: str) -> str:
    """The script that takes back what a cluster has on a host; it says "kept" where another cluster needs the files.

    Those are named by their content, and shared: they go with the last cluster that has its line there. Pure.
    """
    return "\n".join(
        [
            "set -eu",
            "umask 077",
            f'[ ! -d "$HOME/.cluster" ] || {{ {_LOCK}; }}',
            'keys=$(readlink -f "$HOME/.ssh/authorized_keys")',
            f'if grep -q -e {shlex.quote(f" {mark}$")} "$keys" 2>/dev/null; then',
            f'    {_without(mark)} >"$keys.{mark}"',
            f'    mv "$keys.{mark}" "$keys"',
            "fi",
            f'if grep -q -E -e {shlex.quote(f" {MARK}(-[a-z0-9-]+)?$")} "$keys" 2>/dev/null; then',
            f"    echo {KEPT}",
            "    exit 0",
            "fi",
            '[ -d "$HOME/.cluster" ] || exit 0',
            'chmod -R u+w "$HOME/.cluster" 2>/dev/null || :',
            # What set-up commands have made there may be root's.
            'rm -rf "$HOME/.cluster" 2>/dev/null || sudo -n rm -rf "$HOME/.cluster"',
            "",
        ]
    )


def by_hand(spec: Spec, mark: str) -> str:
    """What to type where a host could not be reached. Pure."""
    keys = "~/.ssh/authorized_keys"
    script = f"sed -i '/ {mark}$/d' {keys}; grep -q {MARK} {keys} || rm -rf ~/.cluster"
    return f"{spec.command} {shlex.quote(script)}"
