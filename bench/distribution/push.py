"""`python -m bench.distribution.push ORDER`: sends one file to nodes as bootstrap/apply.py does.

Prints JSON with the seconds from the first connection until each node has the file (`done_s`), the errors by node
(`errors`), and the peak memory of this process in MB (`peak_mb`). The file's digest is computed before, because a
bundle's manifest contains it.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path

from bench.provisioning.peak import peak_mb
from bootstrap.environment.file_cache import describe_file
from bootstrap.ssh.connection import InstanceAccess, wait_for_connection
from bootstrap.ssh.connections import Connections, on_all
from bootstrap.ssh.host import Host
from bootstrap.ssh.keys import HostKeyPins
from bootstrap.transfer.distribute import Distribution, SetUp
from cluster.nodes.ec2 import open_console
from foundation.errors import ClusterError
from foundation.progress import silent
from provision.aws.clients import make_clients

REGION = "us-east-1"


def main() -> None:
    """Reads the order, sends the file and prints the result."""
    order = json.loads(sys.argv[1])
    file = describe_file(Path(order["file"]))
    hosts = [
        Host(name=name, instance_id=each, address=public, private_ip=private, user="ubuntu", is_head=name == "node-0")
        for name, each, public, private in order["hosts"]
    ]
    pins = HostKeyPins(Path(order["pins"]))
    done_s: dict[str, float] = {}
    errors: dict[str, str] = {}
    started = time.perf_counter()
    console = open_console(partial(make_clients, REGION))
    access = InstanceAccess(private_key=Path(order["key"]), pins=pins, console=console)
    with (
        Connections(partial(wait_for_connection, access=access, timeout_s=60)) as connections,
        Distribution(report=silent) as distribution,
    ):

        def work(host: Host) -> None:
            try:
                distribution.set_up(connections.get(host), SetUp(python="python3", files=(file,)))
            except ClusterError as error:
                errors[host.name] = str(error)
            else:
                done_s[host.name] = time.perf_counter() - started

        on_all(hosts, work)
    sys.stdout.write(json.dumps({"done_s": done_s, "errors": errors, "peak_mb": peak_mb()}) + "\n")


if __name__ == "__main__":
    main()
