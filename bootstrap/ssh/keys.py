"""The ssh keys of a cluster: its nodes' host keys, and the keys for logging in to them.

A host key is pinned when EC2's console shows it, and is never silently replaced. The file of pins has OpenSSH's
known_hosts format, with the instance id in place of the host name (HostKeyAlias): another instance may get the same
address, but never the same instance id.

paramiko asks its policy between the key exchange and authentication, so a host that is refused at first contact has
received neither a user name nor a signature.

The cluster's private key stays on this machine. The head has a key of its own, which it has created itself. The other
nodes accept that key only from the head's address, and only for commands.
"""

import os
import random
import shlex
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import paramiko
from msgspec import Struct
from paramiko.client import MissingHostKeyPolicy, SSHClient

from foundation.errors import ClusterError
from foundation.files import write_whole
from foundation.remote_command import RemoteCommand

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0
_GROWTH = 1.5
LOST_HINT = "run this on the machine that created the cluster; or cluster down, then cluster up"
REPIN_HINT = (
    "mv '{path}' '{path}.damaged'; the next command then verifies the nodes' keys with their consoles, and pins them "
    "again"
)
MARK = "cluster-internal"
CHANGED, UNCHANGED = "changed", "unchanged"
LOCK = 'exec 9<"$HOME/.cluster" && flock --timeout 60 9'
RECHECK_S = 3.0
"""cloud-init may regenerate the host keys at the first boot: a contradiction is final only after this time."""


class HostKeyPins:
    """Instance id -> (key type, base64 key), kept in one file. Safe to use from several threads of one process.

    Those of ended instances stay until `down`: another command may know of more instances than this one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def find(self, instance_id: str) -> tuple[str, str] | None:
        """The key that is pinned for an instance; None before the first contact."""
        return self.find_all().get(instance_id)

    def pin(self, instance_id: str, key_type: str, key_base64: str) -> None:
        """Stores the key of an instance. Raises ClusterError if another one is stored."""
        with self._lock:
            pins = self.find_all()
            known = pins.setdefault(instance_id, (key_type, key_base64))
            if known != (key_type, key_base64):
                raise ClusterError(
                    f"{instance_id} is pinned to another host key in {self.path}",
                    hint=REPIN_HINT.format(path=self.path),
                )
            self._write(pins)

    def find_all(self) -> dict[str, tuple[str, str]]:
        """The keys of all instances that have one."""
        try:
            text = self.path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return {}
        pins = {}
        for number, line in enumerate(text.splitlines(), start=1):
            match line.split():
                case [instance_id, key_type, key_base64]:
                    pins[instance_id] = (key_type, key_base64)
                case _:
                    raise ClusterError(
                        f"{self.path}:{number}: not a pinned host key", hint=REPIN_HINT.format(path=self.path)
                    )
        return pins

    def _write(self, pins: dict[str, tuple[str, str]]) -> None:
        text = "".join(f"{alias} {key_type} {key}\n" for alias, (key_type, key) in sorted(pins.items()))
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(self.path, text.encode("ascii"), to_disk=True)


def parse_host_key(key_type: str, key_base64: str) -> paramiko.PKey | None:
    """Parses a host key in the form of known_hosts. Returns None for a damaged key, and for an unknown type. Pure."""
    try:
        entry = paramiko.hostkeys.HostKeyEntry.from_line(f"host {key_type} {key_base64}")
    except (ValueError, paramiko.SSHException, paramiko.hostkeys.InvalidHostKey):
        return None
    return entry.key if entry is not None else None


class Console(Struct, frozen=True, kw_only=True):
    """What the cloud shows of an instance, by its id. The functions raise ClusterError.

    find_fingerprints: returns the fingerprints of its host keys as `SHA256:...`, none while the console shows none.
    find_lines: returns the lines of its last boot, safe to print. find_end: returns how it has ended or stopped, such
    as "is terminated: REASON"; None while it may answer.
    """

    find_fingerprints: Callable[[str], frozenset[str]]
    find_lines: Callable[[str], tuple[str, ...]]
    find_end: Callable[[str], str | None] = lambda _: None


class UnverifiedHostKey(paramiko.SSHException):  # type: ignore[misc] # paramiko has no types
    """The console does not show the presented key. shown: the fingerprints on the console, possibly none yet.

    final: whether the console has been read twice, and shows other keys.
    """

    def __init__(self, key: paramiko.PKey, *, shown: frozenset[str], final: bool, pins_path: Path) -> None:
        super().__init__(f"unverified host key {key.fingerprint}")
        self.key = key
        self.shown = shown
        self.final = final
        self.pins_path = pins_path


class FirstContact(MissingHostKeyPolicy):  # type: ignore[misc] # paramiko has no types
    """paramiko's policy for an instance whose key is not pinned, for all attempts to reach it.

    It reads the console once per pause, however many attempts there are, and reuses the result. The pause grows, with
    jitter. Not safe to use from several threads.
    """

    def __init__(self, instance_id: str, *, pins: HostKeyPins, console: Console) -> None:
        self.pins = pins
        self._instance_id = instance_id
        self._console = console
        self._shown: frozenset[str] = frozenset()
        self._contradicting: frozenset[str] = frozenset()
        self._pause_s = FIRST_PAUSE_S
        self._recheck_at: float | None = None

    def missing_host_key(self, client: SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Pins the key, or raises UnverifiedHostKey. Raises ClusterError for errors of EC2 or of the file of pins."""
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
            self._recheck_at = time.monotonic() + RECHECK_S
        raise UnverifiedHostKey(key, shown=self._shown, final=final, pins_path=self.pins.path)

    @property
    def pause_s(self) -> float:
        """How many seconds remain until the console may be read again."""
        return 0 if self._recheck_at is None else max(0.0, self._recheck_at - time.monotonic())

    def _plan_next_look(self) -> None:
        spread = random.uniform(0.75, 1.25)  # noqa: S311 - only spreads calls over time
        self._recheck_at = time.monotonic() + self._pause_s * spread
        self._pause_s = min(self._pause_s * _GROWTH, LONGEST_PAUSE_S)


def load_private_key(path: Path) -> paramiko.PKey:
    """Reads a private key in OpenSSH's format or PEM. Raises ClusterError for an unusable file."""
    try:
        found = path.stat()
        if found.st_uid == os.getuid() and found.st_mode & 0o077:  # OpenSSH refuses such a key, too
            raise ClusterError(
                f"{path}: other users can read this private key (mode {stat.S_IMODE(found.st_mode):04o})",
                hint=f"chmod 600 '{path}'; if somebody may have read it, cluster down, then cluster up",
            )
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        raise ClusterError(f"{path}: the cluster's private key is missing", hint=LOST_HINT) from None
    except (TypeError, ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        # TypeError: cryptography's for a key with a passphrase.
        raise ClusterError(f"{path}: damaged, not a private key, or with a passphrase", hint=LOST_HINT) from error


def authorized_line(public_key: str, *, head_ip: str, mark: str = MARK) -> str:
    """The line of authorized_keys for the head's public key (`type base64 comment`). It ends with `mark`. Pure."""
    key_type, key_base64 = public_key.split()[:2]
    return f'restrict,from="{head_ip}" {key_type} {key_base64} {mark}'


def known_hosts_text(keys: Mapping[str, tuple[str, str]]) -> str:
    """The text of OpenSSH's known_hosts, from address -> (key type, base64). Pure."""
    return "".join(f"{address} {key_type} {key}\n" for address, (key_type, key) in sorted(keys.items()))


def render_let_in(line: str, *, mark: str) -> RemoteCommand:
    """The script that adds the cluster's line to authorized_keys; it prints "changed" or "unchanged". Pure.

    The other lines stay. If the file is a link, the script changes its target.
    """
    lines = (
        "set -eu",
        "umask 077",
        LOCK,
        'mkdir -p "$HOME/.ssh"',
        'keys=$(readlink -f "$HOME/.ssh/authorized_keys")',
        '[ -e "$keys" ] || : >"$keys"',
        f'if [ "$(grep -e {shlex.quote(f" {mark}$")} "$keys" || :)" = {shlex.quote(line)} ]; then',
        f"    echo {UNCHANGED}",
        "    exit 0",
        "fi",
        rewrite_keys(mark, line),
        f"echo {CHANGED}",
    )
    return RemoteCommand("\n".join(lines))


def rewrite_keys(mark: str, line: str = "") -> str:
    """The shell command that removes a cluster's line from authorized_keys, and adds `line`. Pure.

    On a full disk, it fails, and the file stays as it was: without its other lines, nobody could log in.
    """
    new, add = f'"$keys.{mark}"', f" && echo {shlex.quote(line)}" if line else ""
    # The last of the other lines gets its newline. grep ends with 1 if there are none, with 2 if it cannot write.
    others = f'{{ grep -v -e {shlex.quote(f" {mark}$")} "$keys" || [ $? = 1 ]; }}'
    return f'{{ {others}{add}; }} >{new} && mv {new} "$keys" || {{ rm -f {new}; exit 1; }}'
