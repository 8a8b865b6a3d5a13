"""What `start` hands to the daemon and what the daemon reports, as JSON files in the sandbox's folder."""

import json
import os
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from provision.settings import check
from sandbox.addressing import Ranges
from sandbox.config import SandboxConfig

# No bucket's name begins with a dot.
CHECKIP_PATH = "/.sandbox/checkip"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """A sandbox's settings.

    `sandbox`: [sandbox] of cluster.toml, as JSON has it. `policy`: the text of the IAM policy that it names, or "".
    """

    project_dir: str
    region: str
    private: str
    public: str
    sandbox: dict[str, Any] = field(default_factory=dict)
    policy: str = ""

    @property
    def config(self) -> SandboxConfig:
        """[sandbox] of cluster.toml, as it was at the start."""
        return check(SandboxConfig, self.sandbox, source="[sandbox] as it was at the start")

    @property
    def ranges(self) -> Ranges:
        """The address ranges."""
        return Ranges(private=IPv4Network(self.private), public=IPv4Network(self.public))


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessKey:
    """The sandbox's credentials, made anew at each start."""

    access_key_id: str
    secret_access_key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class HostStatus:
    """A host, as `cluster sandbox status` shows it. `pid`: its process 1, as the machine numbers it."""

    instance_id: str
    state: str
    private_ip: str | None
    public_ip: str | None
    pid: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DaemonStatus:
    """Who the daemon is and what it runs."""

    pid: int
    port: int
    hosts: tuple[HostStatus, ...] = ()


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    """Writes a dataclass whole: a reader sees the old file or the new one."""
    fresh = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as stream:
        json.dump(asdict(value), stream, indent=2)
    fresh.replace(path)


def read_settings(path: Path) -> Settings:
    """Raises OSError, ValueError, KeyError or TypeError when the file is missing or damaged."""
    return Settings(**json.loads(path.read_text()))


def read_access_key(path: Path) -> AccessKey:
    """Raises OSError, ValueError, KeyError or TypeError when the file is missing, another user's or damaged."""
    return AccessKey(**json.loads(path.read_text()))


def read_status(path: Path) -> DaemonStatus:
    """Raises OSError, ValueError, KeyError or TypeError when the file is missing or damaged."""
    raw = json.loads(path.read_text())
    return DaemonStatus(
        pid=int(raw["pid"]), port=int(raw["port"]), hosts=tuple(HostStatus(**host) for host in raw["hosts"])
    )
