"""The host keys of a cluster's nodes: pinned once they are verified (first_contact.py), and never silently replaced.

The file has OpenSSH's known_hosts format with the instance id where a host name would stand (OpenSSH's HostKeyAlias):
an address may belong to another instance tomorrow, an instance id never does.
"""

import threading
from collections.abc import Iterable
from pathlib import Path

from provision.errors import ClusterError
from provision.whole_file import write_whole


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
