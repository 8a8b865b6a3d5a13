"""The host keys of a cluster's nodes: pinned when EC2's console shows them, and never silently replaced.

The file of pins has OpenSSH's known_hosts format with the instance id where a host name would stand (OpenSSH's
HostKeyAlias): an address may belong to another instance tomorrow, an instance id never does.

paramiko asks its policy between the key exchange and authentication, so a host that is refused at first contact has
received neither a user name nor a signature.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.client import MissingHostKeyPolicy, SSHClient

from foundation.errors import ClusterError
from foundation.files import write_whole

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0
_GROWTH = 1.5
RECHECK_S = 3.0
"""cloud-init may make the host keys anew at the first boot: only after this time is a contradiction final."""


class HostKeyPins:
    """Instance id -> (key type, base64 key), kept in one file. Safe to use from several threads of one process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def find(self, instance_id: str) -> tuple[str, str] | None:
        """The key pinned for an instance, or None at first contact."""
        return self._read().get(instance_id)

    def pin(self, instance_id: str, key_type: str, key_base64: str) -> None:
        """Remember the key of an instance that has none yet. Raises ClusterError if it has another one."""
        with self._lock:
            pins = self._read()
            known = pins.setdefault(instance_id, (key_type, key_base64))
            if known != (key_type, key_base64):
                raise ClusterError(f"{instance_id} is pinned to another host key in {self.path}")
            self._write(pins)

    def keep_only(self, instance_ids: Iterable[str]) -> None:
        """Forget the keys of instances that are gone."""
        wanted = set(instance_ids)
        with self._lock:
            pins = self._read()
            if set(pins) - wanted:
                self._write({key: value for key, value in pins.items() if key in wanted})

    def _read(self) -> dict[str, tuple[str, str]]:
        try:
            text = self.path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return {}
        return parse_pins(text, source=str(self.path))

    def _write(self, pins: dict[str, tuple[str, str]]) -> None:
        text = "".join(f"{alias} {key_type} {key}\n" for alias, (key_type, key) in sorted(pins.items()))
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(self.path, text.encode("ascii"), to_disk=True)


def parse_pins(text: str, *, source: str) -> dict[str, tuple[str, str]]:
    """Read the file's lines `instance-id key-type base64`. Pure. Raises ClusterError on any other line."""
    pins = {}
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.split()
        if len(parts) != 3:
            raise ClusterError(
                f"{source}:{number}: not a pinned host key",
                hint=f"rm '{source}'; the nodes' keys are then verified by their consoles, and pinned anew",
            )
        pins[parts[0]] = (parts[1], parts[2])
    return pins


@dataclass(frozen=True, kw_only=True, slots=True)
class Console:
    """How to ask for an instance's console output, by the instance's id; both raise ClusterError.

    find_fingerprints: its host keys' fingerprints as `SHA256:...`, none while the console does not show them.
    find_last_lines: its last lines, safe to print.
    """

    find_fingerprints: Callable[[str], frozenset[str]]
    find_last_lines: Callable[[str], tuple[str, ...]]


class UnverifiedHostKey(paramiko.SSHException):  # type: ignore[misc] # paramiko has no types
    """The presented key is not on the console. shown: the fingerprints that are, possibly none yet.

    final: the console has been looked at twice, and shows others.
    """

    def __init__(self, key: paramiko.PKey, *, shown: frozenset[str], final: bool, pins_path: Path) -> None:
        super().__init__(f"unverified host key {key.fingerprint}")
        self.key = key
        self.shown = shown
        self.final = final
        self.pins_path = pins_path


class FirstContact(MissingHostKeyPolicy):  # type: ignore[misc] # paramiko has no types
    """paramiko's policy for an instance whose key is not pinned, for all attempts to reach it.

    Between two reads of the console it uses the last result: EC2 is asked once per pause, however often an instance is
    tried. The pause grows, with jitter. Not for several threads.
    """

    def __init__(self, instance_id: str, *, pins: HostKeyPins, console: Console) -> None:
        self.pins = pins
        self._instance_id = instance_id
        self._console = console
        self._shown: frozenset[str] = frozenset()
        self._contradicting: frozenset[str] = frozenset()
        self._pause_s = FIRST_PAUSE_S
        self._look_at: float | None = None

    def missing_host_key(self, client: SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Pin the key, or raise UnverifiedHostKey. Raises ClusterError when EC2 or the file of pins says no."""
        del client, hostname
        looked = self.pause_s == 0
        if looked:
            self._shown = self._console.find_fingerprints(self._instance_id)
            self._plan_next_look()
        if key.fingerprint in self._shown:
            self.pins.pin(self._instance_id, key.get_name(), key.get_base64())
            return
        final = False
        if looked and self._shown:
            final = self._shown == self._contradicting
            self._contradicting = self._shown
            self._look_at = time.monotonic() + RECHECK_S
        raise UnverifiedHostKey(key, shown=self._shown, final=final, pins_path=self.pins.path)

    @property
    def pause_s(self) -> float:
        """Seconds until the console may be looked at again."""
        return 0 if self._look_at is None else max(0.0, self._look_at - time.monotonic())

    def _plan_next_look(self) -> None:
        spread = random.uniform(0.75, 1.25)  # noqa: S311 - spreads calls, and keeps no secret
        self._look_at = time.monotonic() + self._pause_s * spread
        self._pause_s = min(self._pause_s * _GROWTH, LONGEST_PAUSE_S)
