"""The sandbox's background process: serves the API and keeps one host for each instance that should run.

    python -m sandbox.daemon MARK STATE_DIR

Started by control.py; ends on SIGTERM, and takes every host with it however it ends.
"""

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from sandbox.api.ec2 import Ec2Settings
from sandbox.api.log import ApiLog
from sandbox.api.moto_setup import install
from sandbox.api.prices import answer_pricing
from sandbox.api.server import TlsServer, answer_checkip, catch_errors, make_tls_context, take_bodies_as_they_are
from sandbox.daemon.control_socket import ControlServer, Desk, MainThreadCalls
from sandbox.daemon.place import AccessKey, DaemonStatus, Place, Settings, read_json, write_json
from sandbox.faults.api import ApiFaults
from sandbox.faults.faults import FaultBook
from sandbox.faults.hosts import HostFaults
from sandbox.hosts.fleet import Fleet, PhantomFleet
from sandbox.hosts.metadata import MetadataServer, MetadataService
from sandbox.hosts.network import open_network
from sandbox.iam.authorization import Authorization
from sandbox.iam.principals import install_principals, name_caller

RECONCILE_S = 0.2
SERVER_POLL_S = 0.1

log = logging.getLogger("sandbox")


def main() -> None:
    """Runs until SIGTERM."""
    place = Place(id=sys.argv[1].rpartition(":")[2], state_dir=Path(sys.argv[2]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    settings = read_json(place.settings_file, Settings)
    wake, stop = threading.Event(), threading.Event()

    def on_signal(*_: object) -> None:
        stop.set()
        wake.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    config = settings.config
    book = FaultBook()
    for text in config.faults:
        book.arm(text)
    calls = MainThreadCalls(wake.set)
    network = open_network(place.mark, place.interface, settings.ranges.gateway, settings.ranges.public)
    server = open_server(place, settings, book)
    fleet = PhantomFleet() if config.hosts == "none" else Fleet(place, settings, network, book, wake.set)
    backend = install(
        Ec2Settings(
            region=settings.region,
            private=settings.ranges.private,
            public=settings.ranges.public,
            wake=wake.set,
            read_console=fleet.read_console,
            enforce=fleet.enforce,
            config=config,
            book=book,
        )
    )
    key = read_json(place.credentials_file, AccessKey)
    install_principals(key.access_key_id, key.secret_access_key, settings.policy)
    immediate = HostFaults(fleet, backend).acts if isinstance(fleet, Fleet) else {}
    ControlServer(place.control_socket, Desk(book, calls, immediate)).start()
    MetadataServer(network.open_metadata_socket(), MetadataService(backend)).start()
    threading.Thread(target=server.serve_forever, args=(SERVER_POLL_S,), name="server", daemon=True).start()
    published: DaemonStatus | None = None
    # The main thread starts all hosts: they die with the thread that started them.
    while not stop.is_set():
        wake.clear()
        if not network.is_up:
            sys.exit("the process that holds the network was killed: no host can be reached any more")
        calls.run_pending()
        fleet.reconcile(backend)
        status = DaemonStatus(pid=os.getpid(), port=server.port, hosts=fleet.describe(backend))
        if status != published:
            write_json(place.status_file, status)
            published = status
        wake.wait(RECONCILE_S)
    log.info("stopping")
    server.shutdown()
    fleet.end_all()
    logging.shutdown()
    # Taking moto's modules apart in an orderly way would take another second, and there is nothing left to save.
    os._exit(0)


def open_server(place: Place, settings: Settings, book: FaultBook) -> TlsServer:
    """The server, on the sandbox's own address only."""
    address = str(settings.ranges.gateway.ip)
    tls = make_tls_context(place, address)
    moto = answer_pricing(take_bodies_as_they_are(DomainDispatcherApplication(create_backend_app)), settings.region)
    guarded = catch_errors(Authorization(moto, settings.region))
    return TlsServer(address, answer_checkip(ApiLog(ApiFaults(guarded, book, name_caller), place.api_log)), tls)


if __name__ == "__main__":
    main()
