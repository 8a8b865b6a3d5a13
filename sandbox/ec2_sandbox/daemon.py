"""The sandbox's background process: serves the API, and runs one host for each instance that should run.

    python -m ec2_sandbox.daemon MARK STATE_DIR

control.py starts it. It ends on SIGTERM, and with its owner's process. All hosts end with it, for whatever reason it
ends. It also answers the command line on a Unix socket. A request and a response are one line of JSON each:
{"do": NAME, ...} returns {"result": ...} or {"error": "what is wrong"}.
"""

from ec2_sandbox import unused  # before all others

# isort: split
import ctypes
import logging
import os
import select
import signal
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from msgspec import json

from ec2_sandbox.api import ec2
from ec2_sandbox.api.ec2 import Ec2Settings, Regions
from ec2_sandbox.api.faults import ApiFaults
from ec2_sandbox.api.log import ApiLog, StateLog
from ec2_sandbox.api.moto_setup import forget, install
from ec2_sandbox.api.server import Services, TlsServer, answer_checkip, catch_errors, make_tls_context
from ec2_sandbox.faults import KINDS, Act, FaultBook, FaultError, parse_fault
from ec2_sandbox.hosts.faults import HostFaults
from ec2_sandbox.hosts.fleet import Fleet, PhantomFleet
from ec2_sandbox.hosts.hosts import adopt_hosts
from ec2_sandbox.hosts.metadata import MetadataServer, MetadataService
from ec2_sandbox.hosts.names import Names, serve_names
from ec2_sandbox.hosts.network import NAME_SERVER_ADDRESS, CommandError, Network, name_server_of, open_network
from ec2_sandbox.iam.authentication import Authentication
from ec2_sandbox.iam.principals import install_principals, name_caller
from ec2_sandbox.paths import (
    CONTROL_TIMEOUT_S,
    SandboxPaths,
    Settings,
    read_settings,
    remove_all,
)

RECONCILE_S = 0.2
SERVER_POLL_S = 0.1
LINE_BYTES = 64 * 1024

Requests = Mapping[str, Callable[..., Any]]
"""What a running sandbox does for the command line, by the name of the request. Their parameters are texts."""

log = logging.getLogger("ec2_sandbox")


def main() -> None:
    """Runs until SIGTERM."""
    unused.restore()
    paths = SandboxPaths(id=sys.argv[1].rpartition(":")[2], state_dir=Path(sys.argv[2]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    settings = read_settings(paths)
    adopt_hosts()
    wake, stopped = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    owner = Owner(settings.owner)
    config = settings.config
    book = FaultBook()
    book.restart(config.faults)
    ranges = settings.ranges
    network = open_network(paths.mark, paths.interface, ranges.gateway, ranges.public)
    server = open_server(paths, settings, book)
    fleet = PhantomFleet() if config.hosts == "none" else Fleet(paths, settings, network, book, wake.set)
    regions = install(
        Ec2Settings(
            config=config,
            ranges=ranges,
            wake=wake.set,
            fleet=fleet,
            book=book,
            note=StateLog(paths.state_log).note,
        )
    )
    install_principals(settings.access_key_id, settings.secret_access_key)
    immediate = HostFaults(fleet, regions).acts if isinstance(fleet, Fleet) else {}

    def clear() -> None:
        with ec2.lock:
            fleet.clear()
            forget()
            install_principals(settings.access_key_id, settings.secret_access_key)
            book.restart(config.faults)
        for path in (paths.api_log, paths.state_log):
            os.truncate(path, 0)

    requests: Requests = {
        "status": lambda: {"pid": os.getpid(), "port": server.port},
        "clear": clear,
        "hosts": lambda: fleet.describe(regions),
        "fault": lambda text: cause(text, book, immediate),
        "faults": book.list,
        "disarm": book.disarm,
        "objects": count_objects,
    }
    serve_hosts(network, settings, regions)
    threading.Thread(target=server.serve_forever, args=(SERVER_POLL_S,), name="server", daemon=True).start()
    ctypes.CDLL(None).malloc_trim(0)  # 1 MB, which the imports have freed
    ControlServer(paths.control_socket, requests).start()  # from now on, it counts as running
    # The main thread starts all hosts, because a host ends with the thread that started it.
    while not stopped.is_set() and not owner.has_ended():
        wake.clear()
        fleet.reconcile(regions)
        wake.wait(RECONCILE_S)
    log.info("stopping")
    server.shutdown()
    fleet.end_all()
    logging.shutdown()
    if owner.has_ended():
        remove_orphan(paths, Path(settings.project_dir))
    # Unloading moto's modules would take another second, and nothing is left to save.
    os._exit(0)


def serve_hosts(network: Network, settings: Settings, regions: Regions) -> None:
    """Starts what hosts ask: the instance metadata service and the name server."""
    ranges = settings.ranges
    network.call_inside(lambda: MetadataServer(MetadataService(regions))).start()
    names = Names(region=settings.config.region, private=ranges.private, public=ranges.public)
    name_servers = (name_server_of(ranges.private), NAME_SERVER_ADDRESS)

    def find_private_address(public_ip: str) -> str | None:
        return next(filter(None, (backend.find_private_address(public_ip) for backend in regions)), None)

    network.call_inside(lambda: serve_names(name_servers, names, find_private_address))


class Owner:
    """The process with which the sandbox ends, if there is one. pid: None for a sandbox that ends by SIGTERM alone."""

    def __init__(self, pid: int | None) -> None:
        self._process = select.poll()
        self._has_ended = False
        if pid is not None:
            try:
                self._process.register(os.pidfd_open(pid), select.POLLIN)
            except ProcessLookupError:
                self._has_ended = True

    def has_ended(self) -> bool:
        """Returns whether it has ended."""
        return self._has_ended or bool(self._process.poll(0))


def remove_orphan(paths: SandboxPaths, folder: Path) -> None:
    """Removes all but this process of a sandbox whose owner has ended. Raises SandboxError."""
    from ec2_sandbox.control import locked  # noqa: PLC0415 - few sandboxes end like this
    from ec2_sandbox.sandbox import remove_temporary_folder  # noqa: PLC0415 - as above

    with locked():
        remove_all(paths)
    remove_temporary_folder(folder)


def open_server(paths: SandboxPaths, settings: Settings, book: FaultBook) -> TlsServer:
    """Returns the API server, which listens only on the sandbox's own address."""
    address = str(settings.ranges.gateway.ip)
    tls = make_tls_context(paths, address)
    guarded = catch_errors(Authentication(Services(), (settings.config.region, *settings.config.others)))
    return TlsServer(address, answer_checkip(ApiLog(ApiFaults(guarded, book, name_caller), paths.api_log)), tls)


# --- the socket for the command line


def cause(text: str, book: FaultBook, immediate: Mapping[str, Act]) -> dict[str, Any]:
    """Arms a fault, or causes an immediate one. Returns it. Raises FaultError.

    immediate: the functions that cause immediate faults, by kind.
    """
    fault = parse_fault(text)
    if KINDS[fault.kind].when == "armed":
        return asdict(book.arm(text))
    act = immediate.get(fault.kind)
    if act is None:
        raise FaultError(f'{fault.kind}: this sandbox has no hosts (hosts = "none")')
    return {**asdict(fault), "did": act(fault.parameters)}


def count_objects() -> int:
    """Returns the number of objects in S3."""
    from moto.s3.models import s3_backends  # noqa: PLC0415 - it takes 2 MB, and not every sandbox has objects

    return sum(len(bucket.keys) for bucket in s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets.values())


def answer(requests: Requests, line: bytes) -> dict[str, Any]:
    """Returns the response to a request."""
    request: dict[str, str] = json.decode(line)
    try:
        return {"result": requests[request.pop("do")](**request)}
    except (FaultError, OSError, CommandError) as error:
        return {"error": str(error)}


class _Handler(socketserver.StreamRequestHandler):
    timeout = CONTROL_TIMEOUT_S

    def handle(self) -> None:
        """Reads one request line and sends one response line."""
        assert isinstance(self.server, ControlServer)  # noqa: S101 -- no other server uses it
        self.wfile.write(json.encode(answer(self.server.requests, self.rfile.readline(LINE_BYTES))) + b"\n")


class ControlServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """The daemon's end of the socket. It is in a folder that only the sandbox's owner can enter."""

    daemon_threads = True
    request_queue_size = 128  # commands that wait at once; more are refused

    def __init__(self, path: Path, requests: Requests) -> None:
        self.requests = requests
        super().__init__(str(path), _Handler)

    def start(self) -> None:
        """Serves in a separate thread."""
        threading.Thread(target=self.serve_forever, name="control", daemon=True).start()


if __name__ == "__main__":
    main()
