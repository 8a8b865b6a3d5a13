"""Slurm on the nodes of a cluster: munge, slurmd on every node, slurmctld on the head ([bootstrap] scheduler)."""

import hashlib
import re
import shlex
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.environment.steps import APT
from bootstrap.ssh.connection import NodeConnection, drain, wait_for_exit
from bootstrap.ssh.connections import on_all
from foundation.errors import ClusterError
from foundation.progress import Event, Report
from foundation.remote_command import RemoteCommand, run_as_root

PARTITION = "cluster"
"""The only partition; it contains all nodes."""
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
KEY_BYTES = 128
MEMORY_SHARE = 0.95  # of a node's memory; Slurm drains a node that has less than is configured
FACTS_TIMEOUT_S = 60
INSTALL_TIMEOUT_S = 900
START_TIMEOUT_S = 120
CGROUP_CONF = "CgroupPlugin=cgroup/v1\n"
# Prints `key=value` lines. `applied`: the digest of the configuration with which the daemons were last started.
FACTS = r"""
root=; [ "$(id -u)" = 0 ] || root="sudo -n"
command -v apt-get >/dev/null && echo apt=yes
for name in @PACKAGES@; do
    dpkg-query -W -f='${Status}' $name 2>/dev/null | grep -q 'ok installed' || echo "missing=$name"
done
echo "hostname=$(uname -n | cut -d. -f1)"
echo "cores=$(getconf _NPROCESSORS_ONLN)"
while read -r name value _; do
    [ "$name" != MemTotal: ] || echo "memory_kib=$value"
done </proc/meminfo
! grep -qv '^0:' /proc/self/cgroup || echo cgroup=1
for name in munged slurmctld slurmd; do
    pgrep -x $name >/dev/null && echo "running=$name"
done
$root sh -c '
    [ ! -f /etc/munge/munge.key ] || echo "key=$(sha256sum </etc/munge/munge.key)"
    [ ! -f /etc/slurm/.cluster-applied ] || echo "applied=$(cat /etc/slurm/.cluster-applied)"
' 2>/dev/null
true
"""
# Starts daemons with systemd if it runs, else directly.
START = r"""
restart() {
    if [ -d /run/systemd/system ]; then
        systemctl enable --quiet "$2" && systemctl restart "$2"
        return
    fi
    if pkill -x "$1"; then
        for _ in $(seq 100); do pgrep -x "$1" >/dev/null || break; sleep 0.1; done
    fi
    case $1 in
    munged)
        install -d -o munge -g munge -m 755 /run/munge
        runuser -u munge -- /usr/sbin/munged
        ;;
    *) "/usr/sbin/$1" ;;
    esac
}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmFacts:
    """The facts about a node that matter to Slurm. key_sha256: the SHA-256 of its munge key; None without a key.

    applied: the digest of the configuration with which its daemons were last started; None if they never were.
    """

    missing: tuple[str, ...]
    has_apt: bool
    hostname: str
    cores: int
    memory_kib: int
    has_cgroup_v1: bool
    running: frozenset[str]
    key_sha256: str | None
    applied: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmNode:
    """A node in slurm.conf."""

    hostname: str
    address: str
    cores: int
    memory_mib: int


def set_up_slurm(connections: Sequence[NodeConnection], *, cluster: str, report: Report) -> frozenset[str]:
    """Sets up Slurm on the nodes, which include the head. Changes only what differs.

    Returns the instance ids of the nodes that it has changed. Raises ClusterError, which names every failed node.
    """
    facts: dict[str, SlurmFacts] = {}
    changed: set[str] = set()

    def look(connection: NodeConnection) -> None:
        facts[connection.host.instance_id] = _gather_facts(connection)

    def install(connection: NodeConnection) -> None:
        found = facts[connection.host.instance_id]
        if found.missing:
            name = connection.host.name
            report(Event(kind="start", what="installing Slurm", where=name))
            connection.run(
                RemoteCommand(render_install(found, node=name)),
                timeout_s=INSTALL_TIMEOUT_S,
                what="the installation of Slurm",
            )
            look(connection)

    on_all(connections, look)
    on_all(connections, install)
    head = next(one for one in connections if one.host.is_head)
    key = _take_key(head, facts[head.host.instance_id])
    nodes = [describe_node(facts[one.host.instance_id], address=one.host.private_ip) for one in connections]
    conf = render_slurm_conf(nodes, cluster=cluster, head=nodes[list(connections).index(head)])

    def configure(connection: NodeConnection) -> None:
        found = facts[connection.host.instance_id]
        script = plan_configuration(found, conf=conf, key=key, is_head=connection.host.is_head)
        if script:
            _run_with_input(connection, script, key)
            changed.add(connection.host.instance_id)
            report(Event(kind="done", what="Slurm is set up", where=connection.host.name))

    on_all([head], configure)  # first: the others register with the head
    on_all([one for one in connections if one is not head], configure)
    return frozenset(changed)


def parse_facts(text: str) -> SlurmFacts:
    """Parses the output of FACTS. Pure. Raises ValueError."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        found.setdefault(key, []).append(value)

    def one(key: str) -> str:
        return found.get(key, [""])[0]

    hostname = one("hostname")
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", hostname) is None:
        raise ValueError(f"{hostname[:40]!r} is not a host name")
    key = one("key").split(" ")[0]
    return SlurmFacts(
        missing=tuple(name for name in PACKAGES if name in found.get("missing", ())),
        has_apt="apt" in found,
        hostname=hostname,
        cores=max(1, int(one("cores"))),
        memory_kib=int(one("memory_kib")),
        has_cgroup_v1="cgroup" in found,
        running=frozenset(found.get("running", ())),
        key_sha256=key if re.fullmatch(r"[0-9a-f]{64}", key) else None,
        applied=one("applied") or None,
    )


def describe_node(facts: SlurmFacts, *, address: str) -> SlurmNode:
    """A node as slurm.conf describes it. Pure."""
    memory_mib = int(facts.memory_kib / 1024 * MEMORY_SHARE)
    return SlurmNode(hostname=facts.hostname, address=address, cores=facts.cores, memory_mib=memory_mib)


def render_slurm_conf(nodes: Sequence[SlurmNode], *, cluster: str, head: SlurmNode) -> str:
    """The text of slurm.conf, the same on all nodes. It contains addresses, so it needs no name server. Pure."""
    lines = [
        "# Written by `cluster up`, which replaces it when nodes change.",
        f"ClusterName={cluster}",
        f"SlurmctldHost={head.hostname}({head.address})",
        "SlurmUser=slurm",
        "AuthType=auth/munge",
        "MpiDefault=none",
        # No cgroups: the processes of a job start over ssh, where Slurm cannot contain them.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "ReturnToService=2",
        "SlurmdTimeout=60",
        "KillWait=5",
        "StateSaveLocation=/var/lib/slurm/slurmctld",
        "SlurmdSpoolDir=/var/lib/slurm/slurmd",
        "SlurmctldLogFile=/var/log/slurm/slurmctld.log",
        "SlurmdLogFile=/var/log/slurm/slurmd.log",
    ]
    lines += [
        f"NodeName={node.hostname} NodeAddr={node.address} CPUs={node.cores} RealMemory={node.memory_mib} State=UNKNOWN"
        for node in nodes
    ]
    lines.append(f"PartitionName={PARTITION} Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP")
    return "".join(f"{line}\n" for line in lines)


def render_install(facts: SlurmFacts, *, node: str) -> str:
    """The shell commands that install the missing packages. Pure. Raises ClusterError for a node without apt."""
    if not facts.has_apt:
        raise ClusterError(
            f'{node}: [bootstrap] scheduler = "slurm" installs packages of Debian and Ubuntu, and this image has no '
            "apt-get",
            hint="use an Ubuntu image ([provision] ami), or an image that has Slurm",
        )
    return "\n".join([
        "set -eu",
        'as_root=; [ "$(id -u)" = 0 ] || as_root="sudo -n"',
        APT,
        f"$apt update && $apt install -y --no-install-recommends {shlex.join(facts.missing)} >&2",
    ])  # fmt: skip


def digest_of(conf: str, key: bytes) -> str:
    """A digest that identifies the configuration and the key with which the daemons are started. Pure."""
    return hashlib.sha256(conf.encode() + hashlib.sha256(key).digest()).hexdigest()


def plan_configuration(facts: SlurmFacts, *, conf: str, key: bytes, is_head: bool) -> str:
    """The shell script that configures and restarts the daemons of a node; "" if nothing differs. Pure.

    The script reads the munge key from stdin, so that no process list shows it.
    """
    digest = digest_of(conf, key)
    has_key = facts.key_sha256 == hashlib.sha256(key).hexdigest()
    daemons = {"munged", "slurmd", *(["slurmctld"] if is_head else [])}
    if facts.applied == digest and has_key and daemons <= facts.running:
        return ""
    lines = [
        "set -eu",
        START,
        "umask 077",
        "cat >/etc/munge/munge.key.new",
        "chown munge:munge /etc/munge/munge.key.new",
        "chmod 400 /etc/munge/munge.key.new",
        "mv /etc/munge/munge.key.new /etc/munge/munge.key",
        "umask 022",
        "install -d /etc/slurm /var/lib/slurm /var/log/slurm /var/lib/slurm/slurmd",
        "install -d -o slurm -g slurm /var/lib/slurm/slurmctld",
        f"printf %s {shlex.quote(conf)} >/etc/slurm/slurm.conf.new",
        "mv /etc/slurm/slurm.conf.new /etc/slurm/slurm.conf",
    ]
    if facts.has_cgroup_v1:  # without this, slurmd 22.05 looks for version 2, and does not start
        lines.append(f"[ -e /etc/slurm/cgroup.conf ] || printf %s {shlex.quote(CGROUP_CONF)} >/etc/slurm/cgroup.conf")
    if "munged" not in facts.running or not has_key:
        lines.append("restart munged munge")
    if is_head:
        lines.append("restart slurmctld slurmctld")
    lines += ["restart slurmd slurmd", f"echo {digest} >/etc/slurm/.cluster-applied"]
    return "\n".join([*lines, ""])


def _gather_facts(connection: NodeConnection) -> SlurmFacts:
    script = FACTS.replace("@PACKAGES@", shlex.join(PACKAGES))
    said = connection.run(
        RemoteCommand(script), timeout_s=FACTS_TIMEOUT_S, what="the script that looks for Slurm"
    ).stdout
    try:
        return parse_facts(said)
    except ValueError as error:
        raise ClusterError(f"{connection.host.name}: cannot be set up for Slurm: {error}") from error


def _take_key(head: NodeConnection, facts: SlurmFacts) -> bytes:
    """The head's munge key; the head makes one if it has none."""
    make = "" if facts.key_sha256 else (
        f"umask 077; head -c {KEY_BYTES} /dev/urandom >/etc/munge/munge.key.new; "
        "chown munge:munge /etc/munge/munge.key.new; mv /etc/munge/munge.key.new /etc/munge/munge.key; "
    )  # fmt: skip
    script = f"set -eu; {make}base64 -w0 /etc/munge/munge.key"
    said = head.run(
        run_as_root("sh", "-c", script), timeout_s=FACTS_TIMEOUT_S, what="the script that reads the munge key"
    ).last_line
    return decode_key(said, node=head.host.name)


def decode_key(text: str, *, node: str) -> bytes:
    """The key from its base64 text. Pure. Raises ClusterError for an invalid key."""
    try:
        key = b64decode(text.strip(), validate=True)
    except ValueError:
        key = b""
    if not 32 <= len(key) <= 1024:  # munged's limits
        raise ClusterError(
            f"{node}: /etc/munge/munge.key is not a key", hint=f"cluster ssh {node}, sudo mungekey -f -c"
        )
    return key


def _run_with_input(connection: NodeConnection, script: str, data: bytes) -> None:
    """Runs a script as root, with `data` as its stdin. Raises ClusterError."""
    channel = connection.open_channel(run_as_root("sh", "-c", script))
    channel.sendall(data)
    channel.shutdown_write()
    name = connection.host.name
    try:
        stdout, stderr = drain(channel, timeout_s=START_TIMEOUT_S)
    except TimeoutError as error:
        channel.close()
        raise ClusterError(f"{name}: Slurm could not be set up: {error}", hint=f"cluster ssh {name}") from None
    if wait_for_exit(channel, timeout_s=FACTS_TIMEOUT_S) != 0:
        said = "\n".join((stdout + stderr).splitlines()[-10:])
        raise ClusterError(
            f"{name}: Slurm could not be set up:\n{said}", hint=f"cluster ssh {name} -- tail /var/log/slurm/slurmd.log"
        )
