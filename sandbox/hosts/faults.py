"""Faults that come about at once, on hosts that run. All of this is called in the main thread."""

import datetime as dt
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from sandbox.api import ec2
from sandbox.api.instances import Interruption, SandboxInstance
from sandbox.faults import Act, FaultError
from sandbox.hosts.fleet import Berth, Fleet
from sandbox.hosts.hosts import POLL_S
from sandbox.hosts.network import CommandError

SPOT_NOTICE_S = 120.0
# Below the host's root; as root's, so that it is there until `free-disk` or somebody in the host removes it.
FILL_FILE = "var/tmp/.sandbox-full-disk"
FREEZE_ROUNDS = 20
END_TIMEOUT_S = 5.0


class HostFaults:
    """Brings about the immediate kinds of faults.py; each method returns what it did, in words."""

    def __init__(self, fleet: Fleet, backend: ec2.SandboxEC2Backend) -> None:
        self._fleet = fleet
        self._backend = backend
        acts: dict[str, Act] = {
            "kill": self.kill,
            "freeze": self.freeze,
            "thaw": self.thaw,
            "partition": self.partition,
            "heal": self.heal,
            "full-disk": self.fill_disk,
            "free-disk": self.free_disk,
            "link": self.shape_link,
            "spot-notice": self.announce_interruption,
        }
        self.acts = {kind: _said(kind, act) for kind, act in acts.items()}

    def kill(self, parameters: Mapping[str, str]) -> str:
        """The host's power is cut. The instance then stops, as it does on lost hardware, or EC2 takes no notice."""
        with ec2.lock:
            instance, berth = self._find(parameters["instance"])
            berth.lost = instance.impaired = parameters.get("leaves") == "running"
            berth.host.kill()
        _wait_until_dead(instance.id, berth)
        return f"the host of {instance.id} is dead, and its instance " + ("goes on" if berth.lost else "stops")

    def freeze(self, parameters: Mapping[str, str]) -> str:
        """All processes stand still, and so does the kernel, for all that the network can tell."""
        with ec2.lock:
            instance, berth = self._find(parameters["instance"])
            self._fleet.links.switch(instance.id, on=False)
            self._fleet.links.refresh(self._backend)
            instance.impaired = True
            berth.frozen |= _stop_processes(_pid_of(berth))
        return f"{instance.id} stands still with {len(berth.frozen)} processes"

    def thaw(self, parameters: Mapping[str, str]) -> str:
        """The processes that `freeze` stopped go on."""
        with ec2.lock:
            instance, berth = self._find(parameters["instance"])
            if not berth.frozen:
                raise FaultError(f"thaw: {instance.id} is not frozen")
            for pid in berth.frozen:
                _send(pid, signal.SIGCONT)
            berth.frozen, instance.impaired = set(), False
            self._fleet.links.switch(instance.id, on=True)
            self._fleet.links.refresh(self._backend)
        return f"{instance.id} goes on"

    def partition(self, parameters: Mapping[str, str]) -> str:
        """No packet passes between two hosts, of connections that are open neither."""
        one, other = self._pair("partition", parameters)
        with ec2.lock:
            self._fleet.links.part(one, other)
            self._fleet.links.refresh(self._backend)
        return f"{one} and {other} do not see each other"

    def heal(self, parameters: Mapping[str, str]) -> str:
        """Ends a partition."""
        one, other = self._pair("heal", parameters)
        with ec2.lock:
            if not self._fleet.links.join(one, other):
                raise FaultError(f"heal: {one} and {other} see each other")
            self._fleet.links.refresh(self._backend)
        return f"{one} and {other} see each other again"

    def fill_disk(self, parameters: Mapping[str, str]) -> str:
        """The root volume has no byte left. It costs the machine nothing: the space is reserved, not written."""
        with ec2.lock:
            instance, berth = self._find(parameters["instance"])
            process = Path(f"/proc/{_pid_of(berth)}")
        root = process / "root"
        if ["/", "ext4"] not in [line.split()[1:3] for line in (process / "mounts").read_text().splitlines()]:
            raise FaultError(f"full-disk: the root volume of {instance.id} is in memory, as there is no loop device")
        free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
        with (root / FILL_FILE).open("wb") as stream:
            # In steps, as the file's own extents need some of the space as well.
            while free >= os.statvfs(root).f_frsize:
                try:
                    os.posix_fallocate(stream.fileno(), os.fstat(stream.fileno()).st_size, free)
                except OSError:
                    free //= 2
        return f"the disk of {instance.id} is full"

    def free_disk(self, parameters: Mapping[str, str]) -> str:
        """Ends `full-disk`."""
        with ec2.lock:
            instance, berth = self._find(parameters["instance"])
            path = Path(f"/proc/{_pid_of(berth)}/root", FILL_FILE)
        if not path.exists():
            raise FaultError(f"free-disk: the disk of {instance.id} has not been filled")
        path.unlink()
        return f"the disk of {instance.id} is as it was"

    def shape_link(self, parameters: Mapping[str, str]) -> str:
        """The host's link gets another bandwidth."""
        mbit = float(parameters["mbit"])
        with ec2.lock:
            instance, berth = self._find(parameters["instance"])
            self._fleet.shape(berth, _pid_of(berth), mbit)
        return f"the link of {instance.id} has {mbit:g} Mbit/s" if mbit else f"the link of {instance.id} has no limit"

    def announce_interruption(self, parameters: Mapping[str, str]) -> str:
        """A spot instance reads in its metadata when it will be ended, and then it is."""
        after_s = float(parameters.get("after_s", SPOT_NOTICE_S))
        with ec2.lock:
            instance, _ = self._find(parameters["instance"])
            if instance.lifecycle != "spot":
                raise FaultError(f"spot-notice: {instance.id} is not a spot instance")
            now = dt.datetime.now(dt.UTC)
            instance.interruption = Interruption(noticed=now, at=now + dt.timedelta(seconds=after_s))
        return f"{instance.id} has been told that it ends in {after_s:g} s"

    def _find(self, instance_id: str) -> tuple[SandboxInstance, Berth]:
        """An instance whose host is up. Raises FaultError."""
        instance = self._instance(instance_id)
        berth = self._fleet.find_berth(instance_id)
        if berth is None or berth.host.exit_code is not None or not berth.boot.done():
            raise FaultError(f"{instance_id} is {instance.state}: it has no host that runs")
        return instance, berth

    def _instance(self, instance_id: str) -> SandboxInstance:
        for instance in self._backend.sandbox_instances():
            if instance.id == instance_id and instance.state != "terminated":
                return instance
        raise FaultError(f"there is no instance {instance_id}")

    def _pair(self, kind: str, parameters: Mapping[str, str]) -> tuple[str, str]:
        one, other = self._instance(parameters["a"]).id, self._instance(parameters["b"]).id
        if one == other:
            raise FaultError(f"{kind}: a= and b= are the same instance")
        return one, other


def _said(kind: str, act: Act) -> Act:
    """The same, but what the machine refuses is a FaultError."""

    def said(parameters: Mapping[str, str]) -> str:
        try:
            return act(parameters)
        except (OSError, CommandError) as error:
            raise FaultError(f"{kind}: {error}") from error

    return said


def _pid_of(berth: Berth) -> int:
    pid = berth.host.pid
    if pid is None:
        raise FaultError("the host has just ended")
    return pid


def _wait_until_dead(instance_id: str, berth: Berth) -> None:
    """Waits until no process of the host is left, so that nothing there answers any more. Raises FaultError.

    The kernel ends all of a pid namespace before its process 1 is reaped, and `unshare` ends after that.
    """
    deadline = time.monotonic() + END_TIMEOUT_S
    while berth.host.exit_code is None:
        if time.monotonic() > deadline:
            raise FaultError(f"the host of {instance_id} was killed, and still lives after {END_TIMEOUT_S:g} s")
        time.sleep(POLL_S)


def _stop_processes(first: int) -> set[int]:
    """Stops all processes of the pid namespace, until no new one turns up; those that were stopped already stay so."""
    namespace = Path(f"/proc/{first}/ns/pid").readlink()
    stopped: set[int] = set()
    for _ in range(FREEZE_ROUNDS):
        fresh = {pid for pid in _pids_in(namespace) if pid not in stopped and _state_of(pid) not in ("T", "Z", "")}
        if not fresh:
            break
        for pid in fresh:
            _send(pid, signal.SIGSTOP)
        stopped |= fresh
    return stopped


def _pids_in(namespace: Path) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns/pid").readlink() == namespace:
                    yield int(entry.name)
            except (FileNotFoundError, ProcessLookupError, PermissionError):  # ended since, or nobody's to look at
                continue


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
