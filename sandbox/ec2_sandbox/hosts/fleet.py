"""The hosts of all instances. Starts and ends them according to the instances' states in EC2."""

import base64
import datetime as dt
import logging
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Interface
from pathlib import Path
from typing import cast

from ec2_sandbox.api import ec2
from ec2_sandbox.api.ec2 import Regions, list_instances
from ec2_sandbox.api.images import SandboxAmi
from ec2_sandbox.api.instances import Checks, SandboxInstance
from ec2_sandbox.api.volumes import SandboxAttachment, SandboxSnapshot, SandboxVolume
from ec2_sandbox.faults import FaultBook
from ec2_sandbox.hosts import cgroups, files, hosts, network
from ec2_sandbox.hosts.cloud_init import RUNNER, render_first_boot
from ec2_sandbox.hosts.copies import Copies
from ec2_sandbox.hosts.disks import attach_disk, detach_disk
from ec2_sandbox.hosts.files import HostSpec
from ec2_sandbox.hosts.firewall import Firewall
from ec2_sandbox.hosts.hosts import BootError, Host
from ec2_sandbox.hosts.network import CommandError, Network, mac_address_of
from ec2_sandbox.hosts.system import copy_system, find_links, is_machines_root
from ec2_sandbox.paths import HostStatus, SandboxPaths, Settings

MAX_THREADS = 16
# Each host has its own range of the machine's user ids, with room for containers (subuid(5)). The ranges are in the
# part that systemd leaves to containers (systemd.io/UIDS-GIDS).
FIRST_UID, UIDS, HOSTS_WITH_IDS = 1 << 29, 1 << 18, 4096
GONE = ".gone"  # the end of the name of a terminated host's folder
CONSOLE_BYTES = 64 * 1024  # GetConsoleOutput returns the last 64 KB

log = logging.getLogger("ec2_sandbox.fleet")


class PhantomFleet:
    """Instances without hosts, for [sandbox] hosts = "none". Each enters its next state immediately."""

    has_disks = True  # whether volumes can be attached: without root, there are no loop devices

    def reconcile(self, regions: Regions) -> None:
        """Advances each instance, volume, snapshot and image by one step, without waiting."""
        with ec2.lock:
            for backend in regions:
                for instance in backend.sandbox_instances():
                    if instance.state != "terminated":
                        self._advance(instance)
                for volume in backend.sandbox_volumes():
                    self._advance_volume(volume)
                for snapshot in backend.sandbox_snapshots():
                    if snapshot.status == "pending" and (succeeded := self._finish(snapshot.id)) is not None:
                        snapshot.status = "completed" if succeeded else "error"
                for image in backend.amis.values():
                    if isinstance(image, SandboxAmi):
                        image.follow_snapshots()
            self.enforce(regions)

    def capture(self, _snapshot: SandboxSnapshot, /) -> None:
        """Starts to copy the bytes that a snapshot's volume has now. Call it under EC2's lock."""

    def check(self, _instance_id: str, /) -> Checks:
        """Returns the state of the host of a running instance. Call it under EC2's lock."""
        return Checks(system="ok", instance="ok")

    def _finish(self, _snapshot_id: str, /) -> bool | None:
        """Returns whether a snapshot has its bytes, or None if not yet."""
        return True

    def _fill(self, _volume: SandboxVolume, /) -> bool:
        """Returns whether a volume has the bytes of its snapshot."""
        return True

    def _advance_volume(self, volume: SandboxVolume) -> None:
        """Advances a volume and its attachment by one step."""
        volume.is_ready = volume.is_ready or self._fill(volume)
        attachment = cast("SandboxAttachment | None", volume.attachment)
        if attachment is None:
            return
        if attachment.status == "attaching":
            if self._attach(volume, attachment):
                attachment.status = "attached"
        elif attachment.status in ("detaching", "busy"):
            if self._detach(volume, attachment):
                volume.ec2_backend.detach_volume(volume.id, attachment.instance.id, attachment.device)
            else:
                attachment.status = "busy"

    def _attach(self, _volume: SandboxVolume, _attachment: SandboxAttachment, /) -> bool:
        """Adds the disk to the host. Returns whether this is done."""
        return True

    def _detach(self, _volume: SandboxVolume, _attachment: SandboxAttachment, /) -> bool:
        """Removes the disk from the host. Returns whether this is done."""
        return True

    def _advance(self, instance: SandboxInstance) -> None:
        if not instance.may_arrive:
            return
        if instance.state == "pending":
            instance.enter_running()
        elif instance.state == "shutting-down":
            instance.finish_termination()
        elif instance.state == "stopping":
            instance.finish_stop()

    def describe(self, regions: Regions) -> tuple[HostStatus, ...]:
        """Returns the instances that are not terminated, with their hosts."""
        with ec2.lock:
            return tuple(
                HostStatus(
                    instance_id=instance.id,
                    state=instance.state,
                    private_ip=instance.private_ip,
                    public_ip=instance.public_ip,
                    pid=self._pid_of(instance.id),
                )
                for instance in list_instances(regions)
                if instance.state != "terminated"
            )

    def _pid_of(self, _instance_id: str, /) -> int | None:
        return None

    def find_host(self, _instance_id: str, /) -> int | None:
        """Returns the machine's pid of the process 1 of an instance's host, or None if its programs do not run."""
        return None

    def enforce(self, regions: Regions) -> None:
        """Applies the security groups to the hosts' links. Call it under EC2's lock."""

    def read_console(self, _instance_id: str, /) -> str:
        """Returns the end of the host's console output."""
        return ""

    def clear(self) -> None:
        """Ends all hosts, and removes their disks and files. Call it under EC2's lock."""

    def end_all(self) -> None:
        """Ends all hosts and waits for them."""


class Fleet(PhantomFleet):
    """One host for each running instance.

    Only the main thread may call `reconcile`, because a host ends with the thread that started it.
    """

    def __init__(
        self, paths: SandboxPaths, settings: Settings, network: Network, book: FaultBook, wake: Callable[[], None]
    ) -> None:
        self.firewall = Firewall(network)
        self._paths = paths
        self._settings = settings
        self.network = network
        self._book = book
        self._wake = wake
        self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="fleet")
        self._hosts: dict[str, Host] = {}
        self._copies = Copies(paths, self._pool, wake)
        self._sweeper: threading.Thread | None = None
        self._launched = 0
        # As on EC2, the output of terminated instances is kept, because it shows why a boot failed.
        self._last_consoles: dict[str, str] = {}
        self._ca_pem = paths.ca_file.read_text()
        self.has_disks = self._is_machines_root = is_machines_root()
        self._layers = copy_system(paths.system_dir, as_own=not self._is_machines_root)
        self._links = find_links()
        self._outer_cgroup = cgroups.find_own()
        self._commands = files.read_commands()  # now: a package that is missing fails the start
        self._accounts = files.render_accounts(Path("/etc/passwd").read_text(), Path("/etc/group").read_text())

    def _advance(self, instance: SandboxInstance) -> None:
        host = self._hosts.get(instance.id)
        if host is not None and host.end_task is not None:
            self._finish_end(instance, host)
        elif instance.state in ("shutting-down", "stopping"):
            if host is None:
                self._settle(instance)
            else:
                self._begin_end(instance, host)
        elif host is not None:
            self._watch(instance, host)
        elif instance.state in ("pending", "running") and not instance.never_boots:
            self._launch(instance)

    def _launch(self, instance: SandboxInstance) -> None:
        attributes = {"zone": str(instance.availability_zone), "type": instance.instance_type}
        if self._book.take("no-boot", **attributes):
            instance.never_boots = True
            return
        self._launched += 1
        try:
            host = hosts.spawn(self._paths, instance.id, self._launched)
        except OSError as error:
            log.error("%s: %s", instance.id, error)  # noqa: TRY400 -- the message is enough
            instance.fail_to_boot(str(error))
            return
        sshd = self._book.take("no-sshd", **attributes) is None
        private_ip, public_ip = str(instance.private_ip), instance.public_ip
        first_uid = FIRST_UID + host.number % HOSTS_WITH_IDS * UIDS if self._is_machines_root else None
        spec = self._describe_host(instance, host, first_uid=first_uid, sshd=sshd)
        addresses = (private_ip,) if public_ip is None else (private_ip, public_ip)
        host.reboots = instance.reboots
        host.boot_task = self._pool.submit(self._boot, host, spec, mac_address_of(private_ip), addresses)
        host.boot_task.add_done_callback(lambda _: self._wake())
        self._hosts[instance.id] = host
        log.info("%s: booting at %s", instance.id, private_ip)

    def _boot(self, host: Host, spec: HostSpec, mac_address: str, addresses: tuple[str, ...]) -> None:
        host.boot(self.network, spec, mac_address, addresses)
        if self._settings.config.link_mbit and host.pid is not None:
            self.network.shape(host.number, host.pid, self._settings.config.link_mbit)

    def _describe_host(self, instance: SandboxInstance, host: Host, *, first_uid: int | None, sshd: bool) -> HostSpec:
        private_ip, name = str(instance.private_ip), instance.private_dns_name
        ranges = self._settings.ranges
        root = instance.root_volume
        image = self._paths.snapshots_dir / str(root.snapshot_id)
        own = IPv4Interface(f"{private_ip}/{ranges.private.prefixlen}")
        has_cloud_init = any(self._paths.packages_dir.glob("*/cloud-init_*.deb"))
        contents = (
            *self._accounts,
            *files.render_home(instance.public_key),
            *files.render_identity(name, private_ip, network.name_server_of(ranges.private), uuid.uuid4().hex),
            *files.render_trust(self._ca_pem),
            *self._commands,
            *render_first_boot(instance.id, read_user_data(instance), has_cloud_init=has_cloud_init),
        )
        return HostSpec(
            instance_id=instance.id, hostname=name.partition(".")[0],
            dmi=files.render_dmi(instance.id, instance.instance_type),
            folder=str(self._paths.hosts_dir / instance.id), disk=str(self._paths.volumes_dir / root.id),
            disk_bytes=root.image_bytes,
            image=str(image) if image.exists() else "",
            packages=str(self._paths.packages_dir), layers=self._layers, links=self._links, files=contents,
            first_uid=first_uid, uids=UIDS, cgroup=str(host.cgroup or ""), outer_cgroup=self._outer_cgroup,
            fuse=self._is_machines_root and Path("/dev/fuse").exists(),
            network=files.render_network(
                own, instance.public_ip, str(ranges.public), str(ranges.gateway.ip), network.MTU
            ),
            after_boot=(RUNNER,), sshd=sshd,
        )  # fmt: skip

    def reconcile(self, regions: Regions) -> None:
        """As without hosts, and removes the disks of deleted volumes and snapshots, and terminated hosts' files."""
        super().reconcile(regions)
        with ec2.lock:
            self._sweep()
            self._copies.remove_deleted(regions)

    def capture(self, snapshot: SandboxSnapshot, /) -> None:
        """Starts to copy the bytes that a snapshot's volume has now. Call it under EC2's lock."""
        attachment = snapshot.volume.attachment
        host = self._hosts.get(attachment.instance.id) if attachment else None
        self._copies.capture(snapshot, host if host and host.boot_task.done() and host.end_task is None else None)

    def _finish(self, snapshot_id: str, /) -> bool | None:
        return self._copies.finish(snapshot_id)

    def _fill(self, volume: SandboxVolume, /) -> bool:
        return self._copies.fill(volume)

    def check(self, instance_id: str, /) -> Checks:
        """Returns the state of the host of a running instance. Call it under EC2's lock."""
        host = self._hosts.get(instance_id)
        if host is None or host.end_task is not None or not host.boot_task.done():
            return Checks(system="ok", instance="initializing")
        if host.lost:
            return Checks(system="impaired", instance="impaired")
        return Checks(system="ok", instance="impaired" if host.frozen else "ok")

    def _attach(self, volume: SandboxVolume, attachment: SandboxAttachment, /) -> bool:
        instance = cast("SandboxInstance", attachment.instance)
        host = self._hosts.get(instance.id)
        if host is None or host.end_task is not None or host.pid is None:
            return instance.state == "stopped"  # its next host gets the disk
        return host.boot_task.done() and self._give_disk(host, volume)

    def _give_disk(self, host: Host, volume: SandboxVolume) -> bool:
        """Adds a volume's disk to the host. Returns whether the host has it; if not, the next step tries again."""
        image = self._paths.volumes_dir / volume.id
        return volume.is_ready and _try_disk(volume.id, lambda: attach_disk(host, volume.id, image, volume.image_bytes))

    def _detach(self, volume: SandboxVolume, attachment: SandboxAttachment, /) -> bool:
        host = self._hosts.get(attachment.instance.id)
        return host is None or _try_disk(volume.id, lambda: detach_disk(host, volume.id))

    def _give_disks(self, instance: SandboxInstance, host: Host) -> bool:
        """Adds the disks of all attached volumes to a host that has booted. Returns whether it has all of them."""
        attached = [v for v in instance.ec2_backend.sandbox_volumes() if v.is_attached_to(instance.id)]
        return all(self._give_disk(host, volume) for volume in attached)

    def _watch(self, instance: SandboxInstance, host: Host) -> None:
        if not host.boot_task.done() or (host.lost and instance.reboots == host.reboots):
            return
        error = host.boot_task.exception()
        if error is not None:
            log.error("%s: %s", instance.id, error, exc_info=None if isinstance(error, BootError) else error)
            instance.fail_to_boot(str(error))
        elif instance.reboots != host.reboots:
            self._begin_end(instance, host)
        elif host.exit_code is not None:
            self._follow_host_end(instance, host)
        elif instance.interruption is not None and instance.interruption.at <= dt.datetime.now(dt.UTC):
            log.info("%s: its spot capacity is taken back", instance.id)
            instance.reclaim()
        elif not self._give_disks(instance, host):
            pass  # the next step tries again
        elif instance.state == "pending" and instance.may_arrive:
            log.info("%s: running", instance.id)
            instance.enter_running()

    def _follow_host_end(self, instance: SandboxInstance, host: Host) -> None:
        """Updates an instance whose host ended by itself."""
        log.info("%s: its host ended unasked (%s)", instance.id, host.ending or host.exit_code)
        match host.ending:
            case "reboot":
                self._begin_end(instance, host)
            case "power-off":
                instance.shut_down_from_inside()
            case None:
                instance.lose_host()

    def _begin_end(self, instance: SandboxInstance, host: Host) -> None:
        log.info("%s: ending its host", instance.id)
        if host.boot_task.done() and host.boot_task.exception() is None and not host.frozen:
            host.end_task = self._pool.submit(host.shut_down)
        else:
            host.kill()
            host.end_task = self._pool.submit(host.end)
        host.end_task.add_done_callback(lambda _: self._wake())

    def _finish_end(self, instance: SandboxInstance, host: Host) -> None:
        assert host.end_task is not None  # noqa: S101 -- the caller has checked
        if not host.end_task.done():
            return
        if error := host.end_task.exception():
            log.error("%s: could not end its host: %s", instance.id, error)
            host.end_task = None
            return
        for volume_id in tuple(host.disks):
            if not _try_disk(volume_id, partial(detach_disk, host, volume_id)):
                return  # the next step tries again
        del self._hosts[instance.id]
        self._settle(instance)
        self._wake()

    def _settle(self, instance: SandboxInstance) -> None:
        """Makes an instance whose host has ended `terminated` or `stopped`."""
        if not instance.may_arrive:
            return
        if instance.state == "shutting-down":
            folder = self._paths.hosts_dir / instance.id
            if folder.exists():
                self._last_consoles[instance.id] = self.read_console(instance.id)
                folder.rename(folder.with_name(instance.id + GONE))
            instance.finish_termination()
            log.info("%s: terminated", instance.id)
        elif instance.state == "stopping":
            instance.finish_stop()
            log.info("%s: stopped", instance.id)

    def _sweep(self) -> None:
        """Starts to remove the files of terminated hosts. Without root, PyTorch takes a minute on a busy disk.

        Call it under EC2's lock: `clear` removes the same folders.
        """
        gone = list(self._paths.hosts_dir.glob(f"*{GONE}"))
        if gone and (self._sweeper is None or not self._sweeper.is_alive()):
            self._sweeper = threading.Thread(target=_remove, args=(gone,), name="sweeper", daemon=True)
            self._sweeper.start()

    def enforce(self, regions: Regions) -> None:
        """Applies the security groups to the hosts' links. Call it under EC2's lock."""
        off = [instance_id for instance_id, host in self._hosts.items() if host.frozen]
        self.firewall.refresh(regions, {instance_id: host.number for instance_id, host in self._hosts.items()}, off)

    def _pid_of(self, instance_id: str, /) -> int | None:
        host = self._hosts.get(instance_id)
        return host.pid if host else None

    def find_host(self, instance_id: str, /) -> int | None:
        """Returns the machine's pid of the process 1 of an instance's host, or None if its programs do not run."""
        with ec2.lock:
            host = self._hosts.get(instance_id)
            is_reachable = host is not None and host.boot_task.done() and host.end_task is None and not host.frozen
            return self._pid_of(instance_id) if is_reachable else None

    def read_console(self, instance_id: str, /) -> str:
        """Returns the last 64 KB of the host's console output."""
        console = self._paths.console_of(instance_id)
        try:
            with console.open("rb") as stream:
                stream.seek(-min(CONSOLE_BYTES, console.stat().st_size), 2)
                return stream.read().decode(errors="replace")
        except FileNotFoundError:  # not yet booted, or terminated
            return self._last_consoles.get(instance_id, "")

    def get_host(self, instance_id: str) -> Host | None:
        """Returns an instance's host, or None. Call it under EC2's lock."""
        return self._hosts.get(instance_id)

    def clear(self) -> None:
        """Ends all hosts, and removes their disks and files. Raises OSError, TimeoutError or CommandError."""
        self._end_hosts()
        for host in self._hosts.values():
            for volume_id in tuple(host.disks):
                detach_disk(host, volume_id)
        self._copies.clear()
        if self._sweeper is not None:
            self._sweeper.join()
        for path in self._paths.hosts_dir.iterdir():
            shutil.rmtree(path)
        self._hosts.clear()
        self._last_consoles.clear()
        self.firewall.parted.clear()

    def end_all(self) -> None:
        """Ends all hosts and waits for them, and for what removes files: the daemon may remove all of them next."""
        self._end_hosts()
        self._pool.shutdown()
        if self._sweeper is not None:
            self._sweeper.join()

    def _end_hosts(self) -> None:
        for host in self._hosts.values():
            host.kill()
        for task in [host.end_task or self._pool.submit(host.end) for host in self._hosts.values()]:
            task.result()


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        try:
            shutil.rmtree(folder)
        except OSError as error:  # such as of a mount that is busy; the next step tries again
            log.error("could not remove %s: %s", folder, error)  # noqa: TRY400 -- its message is enough


def _try_disk(volume_id: str, step: Callable[[], bool]) -> bool:
    """Adds or removes a disk. Returns whether this is done."""
    try:
        return step()
    except (OSError, CommandError) as error:
        log.error("disk of %s: %s", volume_id, error)  # noqa: TRY400 -- as above
        return False


def read_user_data(instance: SandboxInstance) -> bytes:
    """Returns an instance's user data, which is empty if it has none."""
    return base64.b64decode(str(instance.user_data)) if instance.user_data else b""
