"""What of a cluster is kept on the user's machine.

All but the private key can be lost: `cluster adopt` takes the nodes back then.
"""

import fcntl
import json
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from foundation.errors import ClusterError
from foundation.file_lock import locked
from foundation.files import UNFINISHED, write_whole
from provision.membership import KnownInstances

T = TypeVar("T")
TOKEN_LIFETIME_S = 600.0
"""A launch this old is in EC2's lists, if it took effect. What is not listed then has ended since, and its token
would bring back the ended instances."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A RunInstances call that may have been made. digest: of its request; started_at: seconds since 1970.

    instance_ids: what it launched; () until its answer has arrived.
    """

    digest: str
    token: str
    indices: tuple[int, ...]
    started_at: float
    instance_ids: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Journal:
    """What this machine launched or adopted. launches: those whose token is still needed; instance_ids: of all others.

    Ids of instances that have ended stay until the cluster is deleted: EC2 never gives an id twice.
    """

    launches: tuple[Launch, ...] = ()
    instance_ids: frozenset[str] = frozenset()


class ClusterFiles:
    """One folder of one cluster: private key, known hosts, journal of launches, addresses. Made at the first write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.private_key = root / "id_ed25519"
        self.known_hosts = root / "known_hosts"
        self.journal = root / "journal.json"
        self.making = root / "making.json"
        self.lock_file = root / "lock"
        self.addresses_file = root / "addresses.json"
        # What hosts of the user's own have of the cluster; not among _all: it stays until that is taken back.
        self.other_hosts = root / "other_hosts.json"

    def find_public_key(self) -> str | None:
        """The public half of the private key as `type body`; None when there is no private key.

        Raises ClusterError when the file is there and is no private key.
        """
        try:
            return public_key_of(self.private_key.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ClusterError(
                f"{self.private_key} is not an OpenSSH private key without passphrase: {error}",
                hint=f"put the right key there, or move it away; without it running nodes are out of reach: "
                f"rm {self.private_key}",
            ) from error
        except OSError as error:
            _cannot(error, "read", self.private_key)

    def make_key(self) -> str:
        """Makes the private key (0600) unless it is there; its public half. On disk before it returns."""
        existing = self.find_public_key()
        if existing is not None:
            return existing
        key = make_private_key()
        self._write(self.private_key, key)
        return public_key_of(key)

    def launches(self) -> tuple[Launch, ...]:
        """The launches that the last runs began and did not see through. Raises ClusterError."""
        return self._read_journal().launches

    def known_instances(self) -> KnownInstances:
        """The instances that this machine launched, adopted or pinned the host key of.

        A private key that cannot be read is as good as none here; whoever uses it gets the error. Raises ClusterError.
        """
        journal = self._read_journal()
        launched = {instance_id for launch in journal.launches for instance_id in launch.instance_ids}
        public_key = None
        with suppress(ClusterError):
            public_key = self.find_public_key()
        return KnownInstances(
            instance_ids=journal.instance_ids | launched | self._pinned(),
            tokens=frozenset(launch.token for launch in journal.launches),
            public_key=public_key,
        )

    def note_instances(self, instance_ids: Iterable[str]) -> None:
        """Remembers instances as this cluster's nodes, on disk before it returns. Raises ClusterError."""
        journal = self._read_journal()
        if new := frozenset(instance_ids) - journal.instance_ids:
            self._write_journal(replace(journal, instance_ids=journal.instance_ids | new))

    def _pinned(self) -> frozenset[str]:
        """Ids of the instances whose host key is pinned; bootstrap/ssh/keys.py writes the file, and judges it."""
        try:
            lines = self.known_hosts.read_text(encoding="ascii", errors="replace").splitlines()
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            _cannot(error, "read", self.known_hosts)
        return frozenset(line.split()[0] for line in lines if line.split())

    def _read_journal(self) -> Journal:
        # Not to be passed over: its token is what keeps a repeated launch from doubling the cluster.
        hint = f"when no launch is under way: rm {self.journal}; then cluster adopt takes the nodes back"
        return self._read_json(self.journal, Journal, hint=hint) or Journal()

    def client_token(self, digest: str, *, indices: tuple[int, ...], now: float) -> str:
        """The ClientToken of a launch: that of an interrupted run for the same request, else a new one.

        A new one is on disk before this returns, so that a crash during the launch cannot lose it.
        digest: of the request. indices: of the nodes launched. now: seconds since 1970. Raises ClusterError.
        """
        journal = self._read_journal()
        for launch in journal.launches:
            if launch.digest == digest and now - launch.started_at < TOKEN_LIFETIME_S:
                return launch.token
        new = Launch(digest=digest, token=str(uuid.uuid4()), indices=indices, started_at=now)
        stale = [launch for launch in journal.launches if launch.digest == digest]
        left = _drop(journal, stale)
        self._write_journal(replace(left, launches=(*left.launches, new)))
        return new.token

    def note_launched(self, digest: str, instance_ids: Iterable[str]) -> None:
        """Remembers what a launch has launched, on disk before it returns. Raises ClusterError."""
        journal, ids = self._read_journal(), tuple(instance_ids)
        changed = tuple(
            replace(launch, instance_ids=ids) if launch.digest == digest else launch for launch in journal.launches
        )
        self._write_journal(replace(journal, launches=changed))

    def forget_launch(self, digest: str) -> None:
        """Drops one token: its launch was refused."""
        journal = self._read_journal()
        self._write_journal(_drop(journal, [launch for launch in journal.launches if launch.digest == digest]))

    def forget_launches(
        self, launched: Mapping[str, Collection[str]], *, tokens: Collection[str] | None = None
    ) -> None:
        """Drops these tokens, None for all: what they launched has been seen, or is gone. The instances stay known.

        launched: ClientToken -> ids of the instances that EC2 lists. Raises ClusterError.
        """
        journal = self._read_journal()
        dropped = [launch for launch in journal.launches if tokens is None or launch.token in tokens]
        if dropped:
            seen = frozenset(each for launch in dropped for each in launched.get(launch.token, ()))
            left = _drop(journal, dropped)
            self._write_journal(replace(left, instance_ids=left.instance_ids | seen))

    def makings(self) -> dict[str, float]:
        """Kinds of things that may have been made without a token, and when that was begun, in seconds since 1970.

        Raises ClusterError.
        """
        return self._read_json(self.making, dict[str, float], hint=f"wait a minute, then: rm {self.making}") or {}

    def note_making(self, kind: str, *, now: float) -> None:
        """Notes, on disk before it returns, that something of a kind is about to be made. Raises ClusterError."""
        self._write(self.making, msgspec.json.encode({**self.makings(), kind: now}))

    def forget_making(self, kind: str) -> None:
        """It is deleted again."""
        makings = self.makings()
        if makings.pop(kind, None) is not None:
            self._write(self.making, msgspec.json.encode(makings))

    def forget(self) -> None:
        """Removes all files of the cluster, and the folder unless something else is in it."""
        for path in (*self._all, *self.root.glob(f"{UNFINISHED}*")):  # a killed run leaves what it was writing
            self._remove(path)
        try:
            if self.root.is_dir() and not any(self.root.iterdir()):
                self.root.rmdir()
        except OSError as error:
            _cannot(error, "remove", self.root)

    @property
    def exist(self) -> bool:
        """Whether there is anything to forget."""
        return any(path.exists() for path in self._all)

    @property
    def _all(self) -> tuple[Path, ...]:
        return (
            self.private_key,
            self.known_hosts,
            self.journal,
            self.making,
            self.lock_file,
            self.addresses_file,
        )

    def addresses(self) -> dict[str, str]:
        """Where the nodes were when they were last set up, by instance id. A hint: EC2 says where they are."""
        try:
            return {str(key): str(value) for key, value in json.loads(self.addresses_file.read_bytes()).items()}
        except (OSError, ValueError, AttributeError):
            return {}

    def keep_addresses(self, addresses: Mapping[str, str]) -> None:
        """Remember where the nodes are; writes only what is new. Raises ClusterError."""
        if self.addresses() != addresses:
            self._write(self.addresses_file, json.dumps(dict(addresses), indent=1).encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lets one command at a time change the cluster. Raises ClusterError when another one is at it.

        The lock is the kernel's: it ends with the process that holds it, however that ends.
        """
        self._make_root()
        with ExitStack() as stack:
            try:
                handle = stack.enter_context(locked(self.lock_file, wait=False))
            except BlockingIOError as error:
                holder = self.lock_file.read_text(errors="replace").strip() or "unknown"
                raise ClusterError(
                    f"another command is changing this cluster (process {holder}, lock {self.lock_file})",
                    hint="wait until it has ended",
                ) from error
            except OSError as error:
                _cannot(error, "write", self.lock_file)
            os.ftruncate(handle, 0)
            with suppress(OSError):  # it is for the message above alone: `down` has to work on a full disk, too
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            yield

    def find_command_at_work(self) -> int | None:
        """The process that holds the lock; None when nobody does, as far as this user may look.

        The lock itself is tried only while the process that wrote its id there lives: trying means holding it for a
        moment, and an `up` at that moment would be refused.
        """
        try:
            handle = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            return None
        try:
            text = os.pread(handle, 32, 0).decode(errors="replace").strip()
            if not text.isdecimal() or not _lives(int(text)):
                return None
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(text)
        else:
            return None
        finally:
            os.close(handle)

    def _read_json(self, path: Path, kind: type[T], *, hint: str) -> T | None:
        """A file's content; None when there is no file. hint: for one that is damaged. Raises ClusterError."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, ValueError) as error:
            raise ClusterError(f"{path} is damaged: {error}", hint=hint) from error
        except OSError as error:
            _cannot(error, "read", path)

    def _write_journal(self, journal: Journal) -> None:
        self._write(self.journal, msgspec.json.format(msgspec.json.encode(journal, order="deterministic"), indent=1))

    def _make_root(self) -> None:
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            _cannot(error, "make", self.root)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _cannot(error, "remove", path)

    def _write(self, path: Path, content: bytes) -> None:
        """Writes a file (0600) so that after a crash there is all of it or nothing."""
        self._make_root()
        try:
            write_whole(path, content, to_disk=True)
        except OSError as error:
            _cannot(error, "write", path)


def _drop(journal: Journal, dropped: Collection[Launch]) -> Journal:
    """Without these launches; what they are known to have launched stays known."""
    launched = frozenset(instance_id for launch in dropped for instance_id in launch.instance_ids)
    kept = tuple(launch for launch in journal.launches if launch not in dropped)
    return Journal(launches=kept, instance_ids=journal.instance_ids | launched)


def _cannot(error: OSError, verb: str, path: Path) -> NoReturn:
    raise ClusterError(
        f"cannot {verb} {path}: {error.strerror}",
        hint="check the folder's owner, permissions and free space",
    ) from error


def make_private_key() -> bytes:
    """A new ed25519 private key in OpenSSH's format, without a passphrase."""
    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def public_key_of(private_key: bytes) -> str:
    """Its public half as `type body`, without comment. Raises ValueError for anything but such a key."""
    try:
        loaded = load_ssh_private_key(private_key, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:  # a passphrase; a key type nobody knows
        raise ValueError(str(error)) from error
    return loaded.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
