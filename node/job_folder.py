"""A job's folder on a host, ~/.cluster/jobs/ID; on the head, it also contains the job's record, without secrets."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import to_builtins

from foundation.decode import decode
from foundation.remote_command import HIDDEN, hide_passwords
from node.protocol import MAX_RECORD_BYTES, Record
from node.setup import process_tree

KEPT = 50  # the number of ended jobs whose folders remain: of those with files, and of those without
FILES = "files"  # the mark of a job that has created files on this host
# Names of variables whose values are masked. Words that are part of others (KEYBOARD, COMPASS, AUTHOR) count only
# between underscores or alone. PWD alone is a shell's folder, and TOKENIZERS_PARALLELISM a setting.
SECRET = re.compile(
    "SECRET|TOKEN(?!IZ)|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|SSHPASS|CREDENTIAL|AUTHORIZATION|(API|ACCESS|PRIVATE)KEY"
    "|(^|_)(PASS|PW|AUTH|OAUTH2?|BEARER|CREDS?|JWT|PAT|COOKIE|WEBHOOK)(_|$)"
    "|_(PWD|KEYS?)(_|$)|^KEYS?$",
    re.IGNORECASE,
)
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


def root() -> str:
    """The folder of all jobs."""
    return os.path.join(os.path.expanduser("~"), ".cluster", "jobs")


def path(job: str, *names: str) -> str:
    """The path of a job's folder, or of a file in it."""
    return os.path.join(root(), job, *names)


@contextmanager
def short_path(socket: str) -> Iterator[str]:
    """The path of a socket in a form that has room in the kernel's 107 bytes, however long that of the home folder."""
    folder, name = os.path.split(socket)
    descriptor = os.open(folder, os.O_PATH)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def mask(name: str, value: str) -> str:
    """Returns a variable's value for display: masked if the name suggests a secret, and without passwords in URLs."""
    return HIDDEN if SECRET.search(name) else hide_passwords(value)


def read_record(job: str) -> Record | None:
    """A job's record; None if there is none, or it is damaged."""
    try:
        with open(path(job, "record.json"), "rb") as stream:
            record = decode(stream.read(MAX_RECORD_BYTES + 1), Record)
    except (OSError, ValueError):
        return None
    return record if record.id == job and record.nodes and record.spec.python else None


def find_damaged() -> list[str]:
    """The jobs with damaged records."""
    return [name for name in _names() if os.path.exists(path(name, "record.json")) and read_record(name) is None]


def write_record(record: Record, *, lasting: bool = False) -> None:
    """Replaces a job's record atomically. lasting: make it survive a power failure. Raises OSError."""
    data = json.dumps(to_builtins(record), sort_keys=True).encode("ascii") + b"\n"
    write_whole(path(record.id, "record.json"), data, lasting=lasting)


def write_whole(target: str, data: bytes, *, mode: int = 0o600, lasting: bool = False) -> None:
    """Writes or replaces a file atomically. lasting: make it survive a power failure. Raises OSError."""
    fresh = f"{target}.{os.getpid()}.new"  # hosts may share a home folder, and write the same
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(data)
            if lasting:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(fresh, target)
    except OSError as error:
        remove(fresh)
        raise OSError(error.errno, error.strerror, target) from error


def read_all() -> list[Record]:
    """The records of all jobs, the newest first."""
    records = [record for record in map(read_record, _names()) if record is not None]
    return sorted(records, key=lambda record: (record.submitted_at, record.id), reverse=True)


def prune(records: list[Record]) -> None:
    """Removes the folders of all but the newest ended jobs. records: the newest first."""
    ended = [record for record in records if record.has_ended]
    for record in (*[one for one in ended if one.files][KEPT:], *[one for one in ended if not one.files][KEPT:]):
        shutil.rmtree(path(record.id), ignore_errors=True)


def make_output_dir(job: str) -> str:
    """Creates the folder for the job's output on this host, and removes those of all but the newest earlier jobs."""
    folder = path(job, "output")
    if not os.path.isdir(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        # Those with a record, on the head, are removed with it (prune).
        names = [name for name in _names() if not os.path.exists(path(name, "record.json"))]
        names.sort(key=_changed_at, reverse=True)
        with_files = [name for name in names if os.path.exists(path(name, FILES))]
        for old in (*with_files[KEPT:], *[name for name in names if name not in with_files][KEPT:]):
            if not process_tree.find(old):  # such as a notebook, beside which others have run
                shutil.rmtree(path(old), ignore_errors=True)
    return folder


def write_authorities(job: str, authorities: str) -> str:
    """Writes the certificates for a job's processes on this host. Returns the file's path. Raises OSError."""
    target = path(job, "authorities.pem")
    write_whole(target, authorities.encode("ascii"))
    return target


def _changed_at(job: str) -> float:
    try:
        return os.path.getmtime(path(job))
    except OSError:  # removed meanwhile
        return 0.0


def _names() -> list[str]:
    try:
        return [name for name in os.listdir(root()) if os.path.isdir(path(name))]
    except FileNotFoundError:
        return []


def remove(file: str) -> None:
    """Removes a file if it exists."""
    try:
        os.unlink(file)
    except FileNotFoundError:
        pass


def describe(error: OSError) -> str:
    """An OSError as text: what happened, and to which file."""
    where = "" if error.filename is None else f" ({error.filename})"
    return (error.strerror or str(error)) + where
