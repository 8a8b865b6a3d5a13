"""`python -m bench.provisioning.nodes_up CONFIG COUNT [--ssh]`: the part of `cluster up` before the bootstrap.

Calls the same functions in the same order as cluster/commands/up.py: the preflight, the plan, the launch, the wait.
With --ssh, also logs in to each node, and verifies and pins its host key as `cluster up` does. Prints JSON with the
seconds from the start of the process until the last node runs (`running_s`) and until the last login (`ssh_s`), and
`peak_mb`.
"""

import json
import sys
import time
from pathlib import Path

from bench.provisioning.peak import peak_mb
from bootstrap.ssh.connections import on_all
from cluster.app import App
from cluster.nodes.ec2 import Ec2Source, nodes_of
from cluster.session import BOOT_TIMEOUT_S, find_request
from provision.aws.clients import make_clients
from provision.model import ClusterState
from provision.render import render_plan
from provision.up import prepare_up, up


def main() -> None:
    """Reads the arguments, launches the nodes and prints the result."""
    app = App(config_path=Path(sys.argv[1]))
    app.overrides["provision.nodes"] = int(sys.argv[2])
    app.enter_cloud()
    state = launch(app)
    told = {"running_s": seconds_since_start()}
    if "--ssh" in sys.argv[3:]:
        log_in(app, state)
        told["ssh_s"] = seconds_since_start()
    sys.stdout.write(json.dumps({**told, "peak_mb": peak_mb()}) + "\n")


def launch(app: App) -> ClusterState:
    """Launches the nodes that cluster.toml describes, and waits until they run."""
    clients = make_clients(app.config.provision.region)
    request = find_request(app)
    plan = prepare_up(clients, request=request, files=app.files)
    app.message(render_plan(plan).rstrip())
    return up(
        plan,
        clients=clients,
        files=app.files,
        report=app.report,
        replan=lambda avoid: prepare_up(clients, request=request, files=app.files, avoid=avoid),
    )


def log_in(app: App, state: ClusterState) -> None:
    """Connects to all nodes in parallel."""
    with Ec2Source(app).open_connections(wait_s=BOOT_TIMEOUT_S) as connections:
        on_all(nodes_of(app, state).find_hosts(), connections.get)


def seconds_since_start() -> float:
    """Returns the seconds since the kernel started this process.

    This includes the start of Python, as for a command.
    """
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / 100


if __name__ == "__main__":
    main()
