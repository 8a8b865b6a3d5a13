"""`python -m bench.distribution.again CONFIG NODES CONTENDER`: one round of bench/ready.py.

Prints JSON with the duration in seconds (`seconds`) and whether anything changed on a node (`changed`).
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bootstrap.ssh.connections import on_all
from bootstrap.ssh.host import Host
from cluster.app import App
from cluster.nodes.ec2 import Ec2Source, describe_state, nodes_of
from cluster.session import ready_nodes
from foundation.remote_command import RemoteCommand
from provision.model import ClusterState

SSH_OPTIONS = ("-F", "none", "-o", "LogLevel=ERROR", "-o", "BatchMode=yes")


def main() -> None:
    """Runs the contender that the arguments name, and prints the result."""
    app = App(config_path=Path(sys.argv[1]))
    app.overrides["provision.nodes"] = int(sys.argv[2])
    app.enter_cloud()
    state = describe_state(app)
    rounds: dict[str, Callable[[App, ClusterState], bool]] = {
        "cluster": by_cluster, "Fabric, true": by_fabric, "OpenSSH, true": by_openssh
    }  # fmt: skip
    started = time.perf_counter()
    changed = rounds[sys.argv[3]](app, state)
    sys.stdout.write(json.dumps({"seconds": time.perf_counter() - started, "changed": changed}) + "\n")


def by_cluster(app: App, state: ClusterState) -> bool:
    with ready_nodes(app, nodes_of(app, state)) as (nodes, _):
        return any(node.changed for node in nodes)


def by_fabric(app: App, state: ClusterState) -> bool:
    with Ec2Source(app).open_connections(wait_s=60) as connections:
        hosts = nodes_of(app, state).find_hosts()
        on_all(hosts, lambda host: connections.get(host).run(RemoteCommand("true")))
    return False


def by_openssh(app: App, state: ClusterState) -> bool:
    def start(host: Host) -> subprocess.Popen[bytes]:
        options = [*SSH_OPTIONS, "-i", str(app.files.private_key), "-o", f"UserKnownHostsFile={app.files.known_hosts}"]
        words = ["ssh", *options, "-o", f"HostKeyAlias={host.instance_id}", f"{host.user}@{host.address}", "true"]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL)

    processes: Sequence[subprocess.Popen[bytes]] = [start(host) for host in nodes_of(app, state).find_hosts()]
    if any(process.wait() for process in processes):
        sys.exit("ssh failed")
    return False


if __name__ == "__main__":
    main()
