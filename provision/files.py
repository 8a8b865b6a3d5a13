"""A cluster's files on the user's machine.

Only the private key cannot be replaced. If the other files are lost, `cluster adopt` adds the nodes again.
"""

import json
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

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
from msgspec import Struct, field
from msgspec.structs import replace

from foundation.decode import decode
from foundation.errors import ClusterError, CredentialsError
from foundation.file_lock import is_held, locked
from foundation.files import UNFINISHED, write_whole
from provision import folders
from provision.membership import KnownInstances, derive_launch_key

JOURNAL = "journal.json"
TOKEN_LIFETIME_S = 600.0
"""EC2 lists a launch of this age, if it took effect. If EC2 does not list it, its instances have ended, and its token
would only return those."""


class Launch(Struct, frozen=True, kw_only=True):
    """A RunInstances call that may have been made. digest: of its request; started_at: seconds since 1970.

    instance_ids: the instances that it launched; () until its response has arrived. lease: the cluster's lease in the
    request, in the format of the tag; a repeated request must have the same one. "" without a lease.
    """

    digest: str
    token: str
    indices: tuple[int, ...]
    started_at: float
    instance_ids: tuple[str, ...] = ()
    lease: str = ""


class Journal(Struct, frozen=True, kw_only=True):
    """The launched or adopted instances of this machine. launches: those whose token is still needed.

    instance_ids: all other instances. creates: see ClusterFiles.pending_creates.
    Ids of ended instances stay until the cluster is deleted: EC2 never reuses an id.
    """

    launches: tuple[Launch, ...] = ()
    instance_ids: frozenset[str] = frozenset()
    creates: Mapping[str, float] = field(default_factory=dict)


class ClusterFiles:
    """A cluster's folder: private key, known hosts, journal of launches, addresses. The first write creates it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.private_key = root / "id_ed25519"
        self.known_hosts = root / "known_hosts"
        self.journal = root / JOURNAL
        self.lock_file = root / "lock"
        self.addresses_file = root / "addresses.json"
        self.continued_jobs = root / "continued_jobs"
        self.orders = root / "orders"
        # The jobs whose files have been copied to this machine.
        self.copied_jobs = root / "copied_jobs"
        self.folder = root / folders.NOTE
        self.account = root / "account"
        # Exists while the head has [notify]'s settings; empty.
        self.watched = root / "watched"
        # The set-up of the user's own hosts. Not in _all: it stays until the set-up is undone.
        self.other_hosts = root / "other_hosts.json"

    def find_public_key(self) -> str | None:
        """The public half of the private key as `type body`; None without a private key.

        Raises ClusterError when the file is not a private key.
        """
        try:
            key = _read(self.private_key)
            return None if key is None else public_key_of(key)
        except ValueError as error:
            raise ClusterError(
                f"{self.private_key} is not an OpenSSH private key without passphrase: {error}",
                hint=f"restore the key, or, without any way to reach running nodes, remove it: rm {self.private_key}",
            ) from error

    def make_key(self) -> str:
        """Returns the public half of the private key. Creates the key (0600) if missing, on disk before it returns."""
        existing = self.find_public_key()
        if existing is not None:
            return existing
        key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        self._write(self.private_key, key)
        return public_key_of(key)

    def launches(self) -> tuple[Launch, ...]:
        """Launches of earlier runs that have not been confirmed yet. Raises ClusterError."""
        return self._read_journal().launches

    def known_instances(self) -> KnownInstances:
        """The instances that this machine launched, adopted or pinned.

        An unreadable private key counts as none here; its user gets the error. Raises ClusterError.
        """
        journal = self._read_journal()
        launched = {instance_id for launch in journal.launches for instance_id in launch.instance_ids}
        public_key = launch_key = None
        with suppress(ClusterError):
            public_key = self.find_public_key()
            launch_key = self.find_launch_key()
        return KnownInstances(
            instance_ids=journal.instance_ids | launched | self._pinned(),
            tokens=frozenset(launch.token for launch in journal.launches),
            public_key=public_key,
            launch_key=launch_key,
        )

    def find_launch_key(self) -> bytes | None:
        """Returns the key that signs the head's launches; None without a private key."""
        try:
            return derive_launch_key(self.private_key.read_bytes())
        except OSError:
            return None

    def new_token(self, *, now: float) -> str:  # noqa: ARG002 -- the head's tokens contain the time
        """Returns the ClientToken for a new launch. now: as Unix time."""
        return str(uuid.uuid4())

    def note_instances(self, instance_ids: Iterable[str]) -> None:
        """Records instances as this cluster's nodes, on disk before it returns. Raises ClusterError."""
        journal = self._read_journal()
        if new := frozenset(instance_ids) - journal.instance_ids:
            self._write_journal(replace(journal, instance_ids=journal.instance_ids | new))

    def _pinned(self) -> frozenset[str]:
        """Ids of the instances whose host key is pinned; bootstrap/ssh/keys.py writes and checks the file."""
        return frozenset(line.split()[0] for line in _read_text(self.known_hosts).splitlines() if line.split())

    def _read_journal(self) -> Journal:
        # A damaged journal is an error, since its tokens prevent a repeated launch from doubling the cluster.
        content = _read(self.journal)
        try:
            return Journal() if content is None else decode(content, Journal)
        except ValueError as error:
            hint = f"if no launch is in progress: rm {self.journal}; then cluster adopt adds the nodes again"
            raise ClusterError(f"{self.journal} is damaged: {error}", hint=hint) from error

    def begin_launch(self, digest: str, *, indices: tuple[int, ...], now: float, lease: str = "") -> Launch:
        """Returns a launch with its ClientToken and lease.

        They are those of an interrupted run with the same request, or new ones. New ones are on disk before this
        returns: a crash during the launch cannot lose them. digest: of the request without the lease. indices: of the
        nodes to launch. now: seconds since 1970.
        Raises ClusterError.
        """
        journal = self._read_journal()
        for launch in journal.launches:
            if launch.digest == digest and now - launch.started_at < TOKEN_LIFETIME_S:
                return launch
        new = Launch(digest=digest, token=self.new_token(now=now), indices=indices, started_at=now, lease=lease)
        stale = [launch for launch in journal.launches if launch.digest == digest]
        left = _drop(journal, stale)
        self._write_journal(replace(left, launches=(*left.launches, new)))
        return new

    def note_launched(self, digest: str, instance_ids: Iterable[str]) -> None:
        """Records the instances of a launch, on disk before it returns. Raises ClusterError."""
        journal, ids = self._read_journal(), tuple(instance_ids)
        changed = tuple(
            replace(launch, instance_ids=ids) if launch.digest == digest else launch for launch in journal.launches
        )
        self._write_journal(replace(journal, launches=changed))

    def forget_launch(self, digest: str) -> None:
        """Drops the token of a refused launch."""
        journal = self._read_journal()
        self._write_journal(_drop(journal, [launch for launch in journal.launches if launch.digest == digest]))

    def forget_launches(
        self, launched: Mapping[str, Collection[str]], *, tokens: Collection[str] | None = None
    ) -> None:
        """Drops these tokens, by default all: EC2 lists the instances that they launched, or these have ended.

        The instances stay known. launched: ClientToken -> ids of the instances that EC2 lists. Raises ClusterError.
        """
        journal = self._read_journal()
        dropped = [launch for launch in journal.launches if tokens is None or launch.token in tokens]
        if dropped:
            seen = frozenset(each for launch in dropped for each in launched.get(launch.token, ()))
            left = _drop(journal, dropped)
            self._write_journal(replace(left, instance_ids=left.instance_ids | seen))

    def pending_creates(self) -> Mapping[str, float]:
        """Kind of a resource that may have been created without a token -> when, as Unix time. Raises ClusterError."""
        return self._read_journal().creates

    def note_create(self, kind: str, *, now: float) -> None:
        """Records, on disk before it returns, that a resource is about to be created. Raises ClusterError."""
        journal = self._read_journal()
        self._write_journal(replace(journal, creates={**journal.creates, kind: now}))

    def forget(self) -> None:
        """Removes all files of the cluster. Removes the folder, too, unless it has other files."""
        for path in (*self._all, *self.root.glob(f"{UNFINISHED}*")):  # killed runs leave unfinished files
            self._remove(path)
        with _errors("remove", self.root):
            if self.root.is_dir() and not any(self.root.iterdir()):
                self.root.rmdir()

    @property
    def exist(self) -> bool:
        """Whether the cluster has files on this machine."""
        return any(path.exists() for path in self._all)

    @property
    def _all(self) -> tuple[Path, ...]:
        return (
            self.private_key, self.known_hosts, self.journal, self.lock_file, self.addresses_file, self.continued_jobs,
            self.orders, self.copied_jobs, self.folder, self.account, self.watched,
        )  # fmt: skip

    def addresses(self) -> dict[str, str]:
        """The nodes' addresses when they were last set up, by instance id. EC2 has the current addresses."""
        try:
            return decode(self.addresses_file.read_bytes(), dict[str, str])
        except (OSError, ValueError):
            return {}

    def keep_addresses(self, addresses: Mapping[str, str]) -> None:
        """Saves the nodes' addresses if they changed. Raises ClusterError."""
        if self.addresses() != addresses:
            self._write(self.addresses_file, json.dumps(dict(addresses), indent=1).encode())

    def find_continued_jobs(self) -> tuple[str, ...]:
        """The jobs that a command has begun to continue on a new head. Raises ClusterError."""
        return tuple(_read_text(self.continued_jobs).split())

    def find_copied(self) -> tuple[str, ...]:
        """The jobs whose files have been copied to this machine. Raises ClusterError."""
        return tuple(_read_text(self.copied_jobs).split())

    def note_copied(self, job: str) -> None:
        """Records that a job's files have been copied. Raises ClusterError."""
        self._append(self.copied_jobs, job)

    def note_continued_jobs(self, jobs: Iterable[str]) -> None:
        """Records the jobs that are about to be continued on a new head. Raises ClusterError.

        Without jobs, removes the record: all of them have been continued.
        """
        lines = "".join(f"{job}\n" for job in jobs)
        if lines:
            self._write(self.continued_jobs, lines.encode())
        else:
            self._remove(self.continued_jobs)

    def find_orders(self) -> dict[str, str]:
        """The digests of the orders that this machine has submitted, by job; the last one of each. Raises ClusterError.

        A damaged line counts as missing: the user is asked before its job is continued.
        """
        lines = [line.split("=") for line in _read_text(self.orders).split()]
        return {words[0]: words[1] for words in lines if len(words) == 2}

    def note_order(self, job: str, digest: str) -> None:
        """Adds the digest of a job's order. Raises ClusterError."""
        self._append(self.orders, f"{job}={digest}")

    def note_launch(self, folder: Path, *, account: str) -> None:
        """Records the folder and the AWS account of the cluster. Raises ClusterError."""
        self._write(self.folder, os.fsencode(folder))
        self._write(self.account, account.encode())

    def check_account(self, find: Callable[[], str]) -> None:
        """Raises CredentialsError if the cluster was launched in another account than that which `find` returns."""
        noted = _read_text(self.account)
        if noted and noted != (account := find()):
            raise CredentialsError(
                f"cluster {self.root.name} was launched in account {noted}; these credentials are of account {account}",
                hint="set AWS_PROFILE for that account (cluster down ends it there), or another name in cluster.toml",
            )

    def note_watched(self, *, is_watched: bool) -> None:
        """Records whether the head has [notify]'s settings. Raises ClusterError."""
        if is_watched:
            self._write(self.watched, b"")
        else:
            self._remove(self.watched)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lets one command at a time change the cluster. Raises ClusterError while another one does.

        The kernel releases the lock when the process that holds it ends.
        """
        self._make_root()
        with ExitStack() as stack:
            try:
                with _errors("write", self.lock_file):
                    handle = stack.enter_context(locked(self.lock_file, wait=False))
            except BlockingIOError as error:
                holder = "unknown"
                with suppress(OSError):
                    holder = self.lock_file.read_text(errors="replace").strip() or holder
                raise ClusterError(
                    f"another command is changing this cluster (process {holder}, lock {self.lock_file})",
                    hint="wait until it ends",
                ) from error
            with suppress(OSError):  # only for the message above: `down` must work on a full disk, too
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            yield

    def find_command_at_work(self) -> int | None:
        """Returns the process that holds the lock; None if there is none, or if its id is not known yet."""
        if not self.lock_file.is_file() or not is_held(str(self.lock_file)):
            return None
        text = self.lock_file.read_text(errors="replace").strip()
        return int(text) if text.isdecimal() else None

    def _write_journal(self, journal: Journal) -> None:
        self._write(self.journal, msgspec.json.format(msgspec.json.encode(journal, order="deterministic"), indent=1))

    def _make_root(self) -> None:
        with _errors("make", self.root):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _remove(self, path: Path) -> None:
        with _errors("remove", path):
            path.unlink(missing_ok=True)

    def _append(self, path: Path, word: str) -> None:
        """Adds a line to a file. Commands may do so at the same time."""
        self._make_root()
        with _errors("write", path), path.open("a") as stream:
            stream.write(f"\n{word}\n")  # the line before may be incomplete

    def _write(self, path: Path, content: bytes) -> None:
        """Writes a file (0600), atomically even across a crash."""
        self._make_root()
        with _errors("write", path):
            write_whole(path, content, to_disk=True)


def _drop(journal: Journal, dropped: Collection[Launch]) -> Journal:
    """The journal without these launches; their known instances stay."""
    launched = frozenset(instance_id for launch in dropped for instance_id in launch.instance_ids)
    kept = tuple(launch for launch in journal.launches if launch not in dropped)
    return replace(journal, launches=kept, instance_ids=journal.instance_ids | launched)


@contextmanager
def _errors(verb: str, path: Path) -> Iterator[None]:
    """Turns OSError into ClusterError, except for a lock that another process holds."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise ClusterError(
            f"cannot {verb} {path}: {error.strerror}",
            hint=f"check the owner and permissions of {path.parent}, and the free disk space",
        ) from error


def _read(path: Path) -> bytes | None:
    """Returns the content of a file; None without a file. Raises ClusterError."""
    with _errors("read", path), suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def _read_text(path: Path) -> str:
    return (_read(path) or b"").decode(errors="replace")


def public_key_of(private_key: bytes) -> str:
    """Returns the public half as `type body`, without comment. Raises ValueError if private_key is not such a key."""
    try:
        loaded = load_ssh_private_key(private_key, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:  # a passphrase; an unknown key type
        raise ValueError(str(error)) from error
    return loaded.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
