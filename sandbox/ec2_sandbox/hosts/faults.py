"""Immediate faults on running hosts. They hold EC2's lock where they use the fleet."""

import datetime as dt
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from ec2_sandbox.api import ec2
from ec2_sandbox.api.instances import Interruption, SandboxInstance
from ec2_sandbox.faults import KINDS, Act, FaultError
from ec2_sandbox.hosts.fleet import Fleet
from ec2_sandbox.hosts.hosts import Host
from ec2_sandbox.hosts.inside import words_inside
from ec2_sandbox.hosts.network import run_quietly
from ec2_sandbox.paths import wait_until

SPOT_NOTICE_S = 120.0
# In the host's root folder, owned by root, until `free-disk` or a process of the host removes it.
FILL_FILE = ".sandbox-full-disk"
END_TIMEOUT_S = 5.0


class HostFaults:
    """Causes immediate faults. `acts`: the functions that cause them, by kind."""

    def __init__(self, fleet: Fleet, regions: ec2.Regions) -> None:
        self._fleet = fleet
        self._regions = regions
        self.acts: dict[str, Act] = {
            name: getattr(self, name.replace("-", "_")) for name, kind in KINDS.items() if kind.when == "immediate"
        }

    def kill(self, parameters: Mapping[str, str]) -> str:
        """Kills the host. The instance then stops, as after a hardware failure; with leaves=running, it does not."""
        with ec2.lock:
            instance, host, _ = self._find(parameters["instance"])
            host.lost = parameters.get("leaves") == "running"
            host.kill()
        # The kernel ends a whole pid namespace before its process 1 can be reaped.
        if not wait_until(lambda: host.exit_code is not None, END_TIMEOUT_S):
            raise FaultError(f"the host of {instance.id} is still alive {END_TIMEOUT_S:g} s after it was killed")
        return f"killed the host of {instance.id}; the instance " + ("stays running" if host.lost else "stops")

    def freeze(self, parameters: Mapping[str, str]) -> str:
        """Stops all processes and the network of the host, as if its kernel had stopped."""
        with ec2.lock:
            instance, host, pid = self._find(parameters["instance"])
            host.frozen = True
            self._fleet.enforce(self._regions)
            _signal_all(pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGSTOP)
        return f"froze all processes of {instance.id}"

    def thaw(self, parameters: Mapping[str, str]) -> str:
        """Continues all processes of the host, and reconnects the network."""
        with ec2.lock:
            instance, host, pid = self._find(parameters["instance"])
            if not host.frozen:
                raise FaultError(f"thaw: {instance.id} is not frozen")
            os.kill(pid, signal.SIGCONT)
            _signal_all(pid, signal.SIGCONT)
            host.frozen = False
            self._fleet.enforce(self._regions)
        return f"{instance.id} continues"

    def partition(self, parameters: Mapping[str, str]) -> str:
        """Drops all packets between two hosts, including those of open connections."""
        with ec2.lock:
            one, other = self._pair("partition", parameters)
            self._fleet.firewall.parted.add(frozenset((one, other)))
            self._fleet.enforce(self._regions)
        return f"{one} and {other} cannot reach each other"

    def heal(self, parameters: Mapping[str, str]) -> str:
        """Ends a partition."""
        with ec2.lock:
            one, other = self._pair("heal", parameters)
            if frozenset((one, other)) not in self._fleet.firewall.parted:
                raise FaultError(f"heal: {one} and {other} are not partitioned")
            self._fleet.firewall.parted.remove(frozenset((one, other)))
            self._fleet.enforce(self._regions)
        return f"{one} and {other} can reach each other again"

    def full_disk(self, parameters: Mapping[str, str]) -> str:
        """Fills the root volume. The space is reserved, not written, so it takes none on the machine's own disk."""
        with ec2.lock:
            instance, _, pid = self._find(parameters["instance"])
            process = Path(f"/proc/{pid}")
        root = process / "root"
        mounts = [line.split()[:2] for line in (process / "mounts").read_text().splitlines()]
        if not any(point == "/" and device.startswith("/dev/loop") for device, point in mounts):  # else: the machine's
            raise FaultError(
                f"full-disk: the root volume of {instance.id} has no size limit, as without root or loop devices"
            )
        free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
        with (root / FILL_FILE).open("wb") as stream:
            # In steps, because the file's extents also take space.
            while free >= os.statvfs(root).f_frsize:
                try:
                    os.posix_fallocate(stream.fileno(), os.fstat(stream.fileno()).st_size, free)
                except OSError:
                    free //= 2
        return f"the disk of {instance.id} is full"

    def free_disk(self, parameters: Mapping[str, str]) -> str:
        """Ends `full-disk`."""
        with ec2.lock:
            instance, _, pid = self._find(parameters["instance"])
            path = Path(f"/proc/{pid}/root", FILL_FILE)
        if not path.exists():
            raise FaultError(f"free-disk: the disk of {instance.id} has not been filled")
        path.unlink()
        return f"freed the disk of {instance.id}"

    def link(self, parameters: Mapping[str, str]) -> str:
        """Changes the bandwidth of the host's link."""
        mbit = float(parameters["mbit"])
        with ec2.lock:
            instance, host, pid = self._find(parameters["instance"])
            self._fleet.network.shape(host.number, pid, mbit)
        return f"the link of {instance.id} has {mbit:g} Mbit/s" if mbit else f"the link of {instance.id} has no limit"

    def spot_notice(self, parameters: Mapping[str, str]) -> str:
        """Announces the end of a spot instance in its metadata, and then ends it."""
        after_s = float(parameters.get("after_s", SPOT_NOTICE_S))
        with ec2.lock:
            instance, _, _ = self._find(parameters["instance"])
            if instance.lifecycle != "spot":
                raise FaultError(f"spot-notice: {instance.id} is not a spot instance")
            now = dt.datetime.now(dt.UTC)
            instance.interruption = Interruption(noticed=now, at=now + dt.timedelta(seconds=after_s))
        return f"announced to {instance.id} that it ends in {after_s:g} s"

    def _find(self, instance_id: str) -> tuple[SandboxInstance, Host, int]:
        """Returns an instance, its host and the host's pid. Raises FaultError if the host does not run."""
        instance = self._instance(instance_id)
        host = self._fleet.get_host(instance_id)
        if host is None or not host.boot_task.done() or (pid := host.pid) is None:
            raise FaultError(f"{instance_id} is {instance.state} and has no running host")
        return instance, host, pid

    def _instance(self, instance_id: str) -> SandboxInstance:
        for instance in ec2.list_instances(self._regions):
            if instance.id == instance_id and instance.state != "terminated":
                return instance
        raise FaultError(f"unknown instance {instance_id}")

    def _pair(self, kind: str, parameters: Mapping[str, str]) -> tuple[str, str]:
        one, other = self._instance(parameters["a"]).id, self._instance(parameters["b"]).id
        if one == other:
            raise FaultError(f"{kind}: a= and b= are the same instance")
        return one, other


def _signal_all(first: int, number: signal.Signals) -> None:
    """Sends a signal to all processes of a host besides its process 1, those of its containers included."""
    run_quietly(words_inside(first, "sh", "-c", f"kill -{number:d} -1 || true"))  # it may have no other process
