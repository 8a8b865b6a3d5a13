"""The first contact with an instance: its host key is pinned when EC2's console shows it, and refused otherwise.

paramiko asks its policy between the key exchange and authentication: what is refused here has been told nothing yet,
neither a user's name nor a signature.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.client import MissingHostKeyPolicy, SSHClient

from bootstrap.host_keys import HostKeyPins

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0
_GROWTH = 1.5
RECHECK_S = 3.0
"""cloud-init may make the host keys anew at the first boot: only after this time is a contradiction final."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Console:
    """How to ask for an instance's console output, by the instance's id; both raise ClusterError.

    find_fingerprints: its host keys' fingerprints as `SHA256:...`, none while the console does not show them.
    find_last_lines: its last lines, fit to be shown.
    """

    find_fingerprints: Callable[[str], frozenset[str]]
    find_last_lines: Callable[[str], tuple[str, ...]]


class UnverifiedHostKey(paramiko.SSHException):  # type: ignore[misc] # paramiko has no types
    """The key that was presented is not on the console: `shown` has what is, which may be nothing yet.

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

    Between two looks at the console it answers from what it saw last: however often an instance is tried, EC2 is asked
    once in a pause, whose length grows and is not the same for all of a thousand nodes. Not for several threads.
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
