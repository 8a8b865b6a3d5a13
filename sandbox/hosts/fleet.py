"""The hosts of all instances: brings what runs on the machine in line with what EC2 says should run."""

import base64
import datetime as dt
import logging
import shutil
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from ipaddress import IPv4Interface
from itertools import combinations
from pathlib import Path

from moto.ec2.models import EC2Backend

from foundation.thread_pool import bounded_pool
from sandbox.api import ec2
from sandbox.api.ec2 import read_groups
from sandbox.api.instances import SandboxInstance
from sandbox.faults import FaultBook
from sandbox.hosts import hosts
from sandbox.hosts.files import (
    RUNNER,
    HostSpec,
    render_accounts,
    render_commands,
    render_first_boot,
    render_home,
    render_identity,
    render_network,
    render_services,
)
from sandbox.hosts.hosts import BootError, Host
from sandbox.hosts.network import MTU, CommandError, Cuts, Network, Port, link_of, mac_address_of, render_ruleset
from sandbox.place import HostStatus, Place, Settings

SIDE_BY_SIDE = 16
CONSOLE_BYTES = 64 * 1024  # GetConsoleOutput gives the last 64 KB

log = logging.getLogger("sandbox.fleet")


class Links:
    """The links of all hosts. To be called under the lock of EC2; what is changed here counts from `refresh` on."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._numbers: dict[str, int] = {}
        self._partitions: set[frozenset[str]] = set()
        self._off: set[str] = set()
        self._loaded = ""

    def attach(self, instance_id: str, number: int) -> None:
        """A host is about to be plugged in; until its groups are known, nothing gets through."""
        self._numbers[instance_id] = number

    def detach(self, instance_id: str) -> None:
        """The host is gone."""
        del self._numbers[instance_id]
        self._off.discard(instance_id)

    def part(self, one: str, other: str) -> None:
        """Two instances do not see each other any more, whatever hosts they will have."""
        self._partitions.add(frozenset((one, other)))

    def join(self, one: str, other: str) -> bool:
        """The opposite of `part`; False when they were not parted."""
        known = frozenset((one, other)) in self._partitions
        self._partitions.discard(frozenset((one, other)))
        return known

    def switch(self, instance_id: str, *, on: bool) -> None:
        """Cuts a host from everything, or ends that."""
        if on:
            self._off.discard(instance_id)
        else:
            self._off.add(instance_id)

    def refresh(self, backend: EC2Backend) -> None:
        """Brings the router's rules in line with the security groups, if anything differs; acts at once."""
        ports = [
            Port(link=link_of(number), groups=_groups_of(backend, instance_id))
            for instance_id, number in self._numbers.items()
        ]
        groups = read_groups(backend, {group for port in ports for group in port.groups})
        ruleset = render_ruleset(groups, ports, self._cuts())
        if ruleset == self._loaded:
            return
        try:
            self._network.load_firewall(ruleset)
        except CommandError as error:
            log.error("the security groups are as they were before: %s", error)  # noqa: TRY400 -- it is one command
            return
        self._loaded = ruleset

    def _cuts(self) -> Cuts:
        parted = [pair for pair in combinations(sorted(self._numbers), 2) if frozenset(pair) in self._partitions]
        return Cuts(
            between=frozenset((self._link(one), self._link(other)) for one, other in parted),
            off=frozenset(self._link(instance_id) for instance_id in self._off),
        )

    def _link(self, instance_id: str) -> str:
        return link_of(self._numbers[instance_id])


def _groups_of(backend: EC2Backend, instance_id: str) -> tuple[str, ...]:
    interface = backend.get_instance(instance_id).nics.get(0)
    return tuple(group.id for group in interface.group_set) if interface is not None else ()


@dataclass(kw_only=True, slots=True)
class Berth:
    """A host and the work on it that is under way.

    `number`: of its link. `reboots`: how many of its instance's it has been through. `public_ip`: the one it has.
    `lost`: killed without EC2 taking notice. `frozen`: the processes that were stopped.
    """

    host: Host
    number: int
    reboots: int
    public_ip: str | None
    boot: "Future[None]"
    end: "Future[None] | None" = None
    lost: bool = False
    frozen: set[int] = field(default_factory=set)


class PhantomFleet:
    """Takes every instance to the state that it is on its way to: for [sandbox] hosts = "none"."""

    def reconcile(self, backend: ec2.SandboxEC2Backend) -> None:
        """One step; returns at once."""
        with ec2.lock:
            for instance in backend.sandbox_instances():
                if instance.state != "terminated":
                    self._advance(instance)
            self.enforce(backend)

    def _advance(self, instance: SandboxInstance) -> None:
        if not instance.may_arrive:
            return
        if instance.state == "pending":
            instance.enter_running()
        elif instance.state == "shutting-down":
            instance.finish_termination()
        elif instance.state == "stopping":
            instance.finish_stop()

    def describe(self, backend: ec2.SandboxEC2Backend) -> tuple[HostStatus, ...]:
        """Every instance that is not terminated, with its host if it has one."""
        with ec2.lock:
            return tuple(
                HostStatus(
                    instance_id=instance.id,
                    state=instance.state,
                    private_ip=instance.private_ip,
                    public_ip=instance.public_ip,
                    pid=self._pid_of(instance.id),
                )
                for instance in backend.sandbox_instances()
                if instance.state != "terminated"
            )

    def _pid_of(self, instance_id: str) -> int | None:
        del instance_id
        return None

    def enforce(self, backend: ec2.SandboxEC2Backend) -> None:
        """Brings the hosts' links, if there are any, in line with the security groups. Call it under EC2's lock."""

    def read_console(self, instance_id: str) -> str:
        """What an instance's host wrote to its console, if it has one."""
        del instance_id
        return ""

    def end_all(self) -> None:
        """Ends every host, if there is any, and waits for it."""


class Fleet(PhantomFleet):
    """One host per running instance and none for any other. Only the main thread calls it, but for `read_console`."""

    def __init__(
        self, place: Place, settings: Settings, network: Network, book: FaultBook, wake: Callable[[], None]
    ) -> None:
        self.links = Links(network)
        self._place = place
        self._settings = settings
        self._network = network
        self._book = book
        self._wake = wake
        self._pool = bounded_pool(SIDE_BY_SIDE)
        self._berths: dict[str, Berth] = {}
        self._launched = 0
        # EC2 keeps a terminated instance's output for a while, and it is what tells why a boot failed.
        self._last_words: dict[str, str] = {}
        self._ca_pem = place.ca_file.read_text()
        self._accounts = render_accounts(Path("/etc/passwd").read_text(), Path("/etc/group").read_text())

    def _advance(self, instance: SandboxInstance) -> None:
        berth = self._berths.get(instance.id)
        if berth is not None and berth.end is not None:
            self._finish_end(instance, berth)
        elif instance.state in ("shutting-down", "stopping"):
            if berth is None:
                self._settle(instance)
            else:
                self._begin_end(instance, berth)
        elif berth is not None:
            self._watch(instance, berth)
        elif instance.state in ("pending", "running") and not instance.never_boots:
            self._launch(instance)

    def _launch(self, instance: SandboxInstance) -> None:
        asked = {"zone": str(instance.availability_zone), "type": instance.instance_type}
        if self._book.take("no-boot", **asked):
            instance.never_boots = True
            return
        instance.impaired = False
        self._launched += 1
        try:
            host = hosts.spawn(self._place, instance.id)
        except OSError as error:
            log.error("%s: %s", instance.id, error)  # noqa: TRY400 -- the traceback says nothing more
            instance.fail_to_boot(str(error))
            return
        sshd = self._book.take("no-sshd", **asked) is None
        spec = self._describe_host(instance, host, sshd=sshd)
        number, private_ip, public_ip = self._launched, str(instance.private_ip), instance.public_ip
        self.links.attach(instance.id, number)
        addresses = (private_ip,) if public_ip is None else (private_ip, public_ip)
        boot = self._pool.submit(self._boot, host, number, spec, mac_address_of(private_ip), addresses)
        boot.add_done_callback(lambda _: self._wake())
        self._berths[instance.id] = Berth(
            host=host, number=number, reboots=instance.reboots, public_ip=public_ip, boot=boot
        )
        log.info("%s: booting at %s", instance.id, private_ip)

    def _boot(self, host: Host, number: int, spec: HostSpec, mac_address: str, addresses: tuple[str, ...]) -> None:
        host.boot(self._network, number, spec, mac_address, addresses)
        if self._settings.config.link_mbit and host.pid is not None:
            self._network.shape(number, host.pid, self._settings.config.link_mbit)

    def _describe_host(self, instance: SandboxInstance, host: Host, *, sshd: bool) -> HostSpec:
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
                *self._accounts,
                *render_home(instance.public_key),
                *render_identity(hostname, private_ip, uuid.uuid4().hex),
                *render_services(self._ca_pem),
                *render_commands(),
                *render_first_boot(instance.id, read_user_data(instance)),
            ),
            after_boot=(RUNNER,),
            sshd=sshd,
        )

    def _watch(self, instance: SandboxInstance, berth: Berth) -> None:
        if not berth.boot.done() or (berth.lost and instance.reboots == berth.reboots):
            return
        error = berth.boot.exception()
        if error is not None:
            log.error("%s: %s", instance.id, error, exc_info=None if isinstance(error, BootError) else error)
            instance.fail_to_boot(str(error))
        elif instance.reboots != berth.reboots:
            self._begin_end(instance, berth)
        elif berth.host.exit_code is not None:
            self._see_to_ended(instance, berth)
        elif instance.interruption is not None and instance.interruption.at <= dt.datetime.now(dt.UTC):
            log.info("%s: its spot capacity is taken back", instance.id)
            instance.reclaim()
        elif instance.state == "pending" and instance.may_arrive:
            log.info("%s: running", instance.id)
            instance.enter_running()
        elif instance.public_ip != berth.public_ip:
            self._move_public_address(instance, berth)

    def _see_to_ended(self, instance: SandboxInstance, berth: Berth) -> None:
        """Its host has ended, and not because the daemon ended it."""
        log.info("%s: its host ended by itself (%s)", instance.id, berth.host.ending or berth.host.exit_code)
        match berth.host.ending:
            case "reboot":
                self._begin_end(instance, berth)
            case "power-off":
                instance.shut_down_from_inside()
            case None:
                instance.lose_host()

    def _move_public_address(self, instance: SandboxInstance, berth: Berth) -> None:
        """An elastic address has come or gone."""
        old, berth.public_ip = berth.public_ip, instance.public_ip
        if berth.host.pid is None:
            return
        try:
            self._network.move_public_address(berth.number, berth.host.pid, old, instance.public_ip)
        except CommandError as error:
            log.error("%s: public address: %s", instance.id, error)  # noqa: TRY400 -- it is one command

    def _begin_end(self, instance: SandboxInstance, berth: Berth) -> None:
        log.info("%s: ending its host", instance.id)
        if berth.boot.done() and berth.boot.exception() is None and not berth.frozen:
            berth.end = self._pool.submit(berth.host.shut_down)
        else:
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
        self.links.detach(instance.id)
        self._settle(instance)
        self._wake()

    def _settle(self, instance: SandboxInstance) -> None:
        """The host is gone: the instance arrives in the state that it was on its way to."""
        if not instance.may_arrive:
            return
        if instance.state == "shutting-down":
            folder = hosts.folder_of(self._place, instance.id)
            if folder.path.exists():
                self._last_words[instance.id] = self.read_console(instance.id)
                try:
                    shutil.rmtree(folder.path)
                except OSError as error:  # tried again at the next step; the other hosts go on
                    log.error("%s: its files cannot be removed: %s", instance.id, error)  # noqa: TRY400 -- no more to say
                    return
            instance.finish_termination()
            log.info("%s: terminated", instance.id)
        elif instance.state == "stopping":
            instance.finish_stop()
            log.info("%s: stopped", instance.id)

    def enforce(self, backend: ec2.SandboxEC2Backend) -> None:
        """Brings the hosts' links in line with the security groups, at once. Call it under the lock of EC2."""
        self.links.refresh(backend)

    def _pid_of(self, instance_id: str) -> int | None:
        berth = self._berths.get(instance_id)
        return berth.host.pid if berth else None

    def read_console(self, instance_id: str) -> str:
        """The last 64 KB that the instance's host wrote to its console."""
        console = hosts.folder_of(self._place, instance_id).console
        try:
            with console.open("rb") as stream:
                stream.seek(-min(CONSOLE_BYTES, console.stat().st_size), 2)
                return stream.read().decode(errors="replace")
        except FileNotFoundError:  # not yet booted, or terminated
            return self._last_words.get(instance_id, "")

    def shape(self, berth: Berth, pid: int, mbit: float) -> None:
        """Limits a host's link to so many Mbit/s, in each direction; 0: no limit. Raises CommandError."""
        self._network.shape(berth.number, pid, mbit)

    def find_berth(self, instance_id: str) -> Berth | None:
        """The host that an instance has now. To be called under the lock, as everything else."""
        return self._berths.get(instance_id)

    def end_all(self) -> None:
        """Ends every host and waits for it."""
        for berth in self._berths.values():
            berth.host.kill()
        for future in [self._pool.submit(berth.host.end) for berth in self._berths.values()]:
            future.result()
        self._pool.shutdown()


def read_user_data(instance: SandboxInstance) -> bytes:
    """An instance's user data; empty when it has none."""
    return base64.b64decode(str(instance.user_data)) if instance.user_data else b""
