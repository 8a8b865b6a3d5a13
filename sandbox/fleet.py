"""The hosts of all instances: brings what runs on the machine in line with what EC2 says should run."""

import logging
import shutil
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path

from sandbox import ec2, hosts
from sandbox.host_files import (
    HostSpec,
    MachineAccounts,
    render_accounts,
    render_home,
    render_identity,
    render_network,
    render_services,
)
from sandbox.hosts import BootError, Host
from sandbox.instances import SandboxInstance
from sandbox.marks import Place
from sandbox.network import MTU, Network
from sandbox.settings import HostStatus, Settings

SIDE_BY_SIDE = 16
CONSOLE_BYTES = 64 * 1024  # GetConsoleOutput gives the last 64 KB

log = logging.getLogger("sandbox.fleet")


@dataclass(kw_only=True, slots=True)
class Berth:
    """A host and the work on it that is under way. `reboots`: how many of its instance's it has been through."""

    host: Host
    number: int
    reboots: int
    boot: "Future[None]"
    end: "Future[None] | None" = None


class Fleet:
    """All hosts of the sandbox. Only the main thread calls it, but for `read_console`."""

    def __init__(self, place: Place, settings: Settings, network: Network, wake: Callable[[], None]) -> None:
        self._place = place
        self._settings = settings
        self._network = network
        self._wake = wake
        self._pool = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="host")
        self._berths: dict[str, Berth] = {}
        self._launched = 0
        # EC2 keeps a terminated instance's output for a while, and it is what tells why a boot failed.
        self._last_words: dict[str, str] = {}
        self._ca_pem = place.ca_file.read_text()
        self._accounts = MachineAccounts(passwd=Path("/etc/passwd").read_text(), group=Path("/etc/group").read_text())

    def reconcile(self, backend: ec2.SandboxEC2Backend) -> None:
        """One step towards one host per running instance and none for any other. Returns at once."""
        with ec2.lock:
            for instance in backend.sandbox_instances():
                if instance.state != "terminated":
                    self._advance(instance)

    def _advance(self, instance: SandboxInstance) -> None:
        berth = self._berths.get(instance.id)
        if berth is not None and berth.end is not None:
            self._finish_end(instance, berth)
        elif instance.state in ("shutting-down", "stopping"):
            if berth is None:
                self._settle(instance)
            else:
                self._begin_end(instance, berth)
        elif instance.state in ("pending", "running"):
            if berth is None:
                self._launch(instance)
            else:
                self._watch(instance, berth)

    def _launch(self, instance: SandboxInstance) -> None:
        self._launched += 1
        try:
            host = hosts.spawn(self._place, instance.id)
        except OSError as error:
            log.error("%s: %s", instance.id, error)  # noqa: TRY400 -- the traceback says nothing more
            instance.fail_to_boot(str(error))
            return
        spec = self._describe_host(instance, host)
        number, address = self._launched, str(instance.private_ip)
        boot = self._pool.submit(host.boot, self._network, number, spec, address)
        boot.add_done_callback(lambda _: self._wake())
        self._berths[instance.id] = Berth(host=host, number=number, reboots=instance.reboots, boot=boot)
        log.info("%s: booting at %s", instance.id, address)

    def _describe_host(self, instance: SandboxInstance, host: Host) -> HostSpec:
        private_ip = str(instance.private_ip)
        hostname = "ip-" + private_ip.replace(".", "-")
        ranges = self._settings.ranges
        return HostSpec(
            instance_id=instance.id,
            hostname=hostname,
            root=str(host.folder.root),
            disk=str(host.folder.disk),
            disk_bytes=instance.root_volume_bytes,
            network=render_network(
                IPv4Interface(f"{private_ip}/{ranges.private.prefixlen}"), instance.public_ip, str(ranges.public), MTU
            ),
            files=(
                *render_accounts(self._accounts),
                *render_home(instance.public_key),
                *render_identity(hostname, private_ip, uuid.uuid4().hex),
                *render_services(self._ca_pem),
            ),
        )

    def _watch(self, instance: SandboxInstance, berth: Berth) -> None:
        if not berth.boot.done():
            return
        error = berth.boot.exception()
        if error is not None:
            log.error("%s: %s", instance.id, error, exc_info=None if isinstance(error, BootError) else error)
            instance.fail_to_boot(str(error))
        elif berth.host.exit_code is not None:
            log.warning("%s: its host ended by itself", instance.id)
            instance.stop()
        elif instance.reboots != berth.reboots:
            self._begin_end(instance, berth)
        elif instance.state == "pending":
            log.info("%s: running", instance.id)
            instance.enter_running()

    def _begin_end(self, instance: SandboxInstance, berth: Berth) -> None:
        log.info("%s: ending its host", instance.id)
        berth.host.kill()
        berth.end = self._pool.submit(berth.host.end)
        berth.end.add_done_callback(lambda _: self._wake())

    def _finish_end(self, instance: SandboxInstance, berth: Berth) -> None:
        assert berth.end is not None  # noqa: S101 -- the caller looked
        if not berth.end.done():
            return
        if error := berth.end.exception():
            log.error("%s: its host does not end: %s", instance.id, error)
            berth.end = None
            return
        del self._berths[instance.id]
        self._settle(instance)

    def _settle(self, instance: SandboxInstance) -> None:
        """The host is gone: the instance arrives in the state that it was on its way to."""
        if instance.state == "shutting-down":
            folder = hosts.folder_of(self._place, instance.id)
            if folder.path.exists():
                self._last_words[instance.id] = self.read_console(instance.id)
                shutil.rmtree(folder.path)
            instance.finish_termination()
            log.info("%s: terminated", instance.id)
        elif instance.state == "stopping":
            instance.finish_stop()
            log.info("%s: stopped", instance.id)

    def describe(self, backend: ec2.SandboxEC2Backend) -> tuple[HostStatus, ...]:
        """Every instance that is not terminated, with its host."""
        with ec2.lock:
            return tuple(
                HostStatus(
                    instance_id=instance.id,
                    state=instance.state,
                    private_ip=instance.private_ip,
                    public_ip=instance.public_ip,
                    pid=self._berths[instance.id].host.pid if instance.id in self._berths else None,
                )
                for instance in backend.sandbox_instances()
                if instance.state != "terminated"
            )

    def read_console(self, instance_id: str) -> str:
        """The last 64 KB that the instance's host wrote to its console."""
        console = hosts.folder_of(self._place, instance_id).console
        try:
            with console.open("rb") as stream:
                stream.seek(-min(CONSOLE_BYTES, console.stat().st_size), 2)
                return stream.read().decode(errors="replace")
        except FileNotFoundError:  # not yet booted, or terminated
            return self._last_words.get(instance_id, "")

    def end_all(self) -> None:
        """Ends every host and waits for it."""
        for berth in self._berths.values():
            berth.host.kill()
        for future in [self._pool.submit(berth.host.end) for berth in self._berths.values()]:
            future.result()
        self._pool.shutdown()
