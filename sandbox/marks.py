"""What belongs to a sandbox: its id, its folder, its interface, and the mark that all its processes carry.

Everything here follows from the project's folder alone, so that `reset` finds all of it when every file is lost.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STATE_ROOT = Path("/var/lib/cluster-sandbox")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where one sandbox lives on this machine."""

    id: str
    state_dir: Path

    @property
    def mark(self) -> str:
        """An argument of its own on the command line of each process of the sandbox."""
        return f"cluster-sandbox:{self.id}"

    @property
    def interface(self) -> str:
        """The machine's network interface into the sandbox; at most 15 characters (IFNAMSIZ)."""
        return f"csb-{self.id}"

    @property
    def settings_file(self) -> Path:
        """Written by `start` for the daemon."""
        return self.state_dir / "settings.json"

    @property
    def credentials_file(self) -> Path:
        """The access key; for its owner alone."""
        return self.state_dir / "credentials.json"

    @property
    def status_file(self) -> Path:
        """Written by the daemon: who it is, where it serves, and its hosts."""
        return self.state_dir / "status.json"

    @property
    def ca_file(self) -> Path:
        """The certificate of the sandbox's own authority."""
        return self.state_dir / "ca.pem"

    @property
    def daemon_log(self) -> Path:
        """What the daemon says."""
        return self.state_dir / "daemon.log"

    @property
    def api_log(self) -> Path:
        """One JSON object per API call."""
        return self.state_dir / "api.jsonl"

    @property
    def control_socket(self) -> Path:
        """Where a running sandbox listens to its owner."""
        return self.state_dir / "control.sock"

    @property
    def objects_dir(self) -> Path:
        """Where moto spools what S3's objects hold, in files without a name."""
        return self.state_dir / "objects"

    @property
    def hosts_dir(self) -> Path:
        """A folder per instance: its disk and its console."""
        return self.state_dir / "hosts"


def place_of(project_dir: Path) -> Place:
    """The sandbox that belongs to a project's folder."""
    resolved = os.fsencode(project_dir.resolve())
    sandbox_id = hashlib.sha256(resolved).hexdigest()[:8]
    return Place(id=sandbox_id, state_dir=STATE_ROOT / sandbox_id)


def read_arguments(pid: int) -> list[str]:
    """A process's command line; empty when it is gone, a kernel thread, or hidden from this user (hidepid)."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
    return [os.fsdecode(word) for word in raw.split(b"\0")[:-1]]


def find_processes(mark: str) -> Iterator[int]:
    """Pids of the sandbox's own processes: those with its mark as an argument, or as one's beginning up to a colon."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        if pid != os.getpid() and any(word == mark or word.startswith(f"{mark}:") for word in read_arguments(pid)):
            yield pid
