"""A job's working folder on a host: a copy of the user's files, to which the job adds its own.

    jobs/ID/work      the folder, unless [train] sync_dst_dir names another one
    jobs/ID/placed    its path; written when the copy is complete. Files with a later ctime, which programs cannot set,
                      are the job's
    jobs/ID/output    $CLUSTER_OUTPUT_DIR

The job's first process on a host makes the copy. It stays for the job's later attempts.
"""

import contextlib
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from node import job_folder
from node.protocol import NewFiles, printable

WORK, PLACED, OUTPUT = "work", "placed", "output"
SAVED = "s3"  # below OUTPUT: what the job saves at URLs, and what they have had before, with the objects' times
COMPLETE = ".complete"  # the mark of a complete tree
COPY_TIMEOUT_S = 3600.0  # the supervisor ends the job earlier if the copy does not proceed
TICK_S = 0.01  # file systems' clocks tick every 1 to 10 ms
MOST_ENTRIES = 50_000
MOST_S = 0.5  # of the end of a job
MOST_FOLDERS = 3  # in a summary
LONGEST_FOLDER = 80


# -- the copy ----------------------------------------------------------------------------------------------------------


def is_placed(job: str, cwd: str) -> bool:
    """Whether a job's working folder is complete."""
    return os.path.isfile(job_folder.path(job, PLACED)) and os.path.isdir(cwd)


def place(job: str, cwd: str, tree: str | None, *, attempt: int = 1) -> None:
    """Makes a job's working folder, unless it is complete, and copies the tree to it. Raises OSError.

    May be called by several processes at once, also on hosts that share the home folder: the first one to create the
    claim of this attempt makes the copy, and then writes to it. A lock would not reach the other hosts.
    """
    os.makedirs(job_folder.path(job), mode=0o700, exist_ok=True)
    claim = job_folder.path(job, f"placing-{attempt}")
    try:
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        wait_for_copy(claim, cwd)
        return
    try:
        if not is_placed(job, cwd):
            os.makedirs(cwd, mode=0o755, exist_ok=True)
            if tree is not None:
                copy_tree(tree, cwd)
                time.sleep(TICK_S)
            with open(job_folder.path(job, PLACED), "wb") as stream:
                stream.write(os.fsencode(cwd))
        outcome = PLACED
    except OSError as error:
        outcome = job_folder.describe(error)
        if cwd == job_folder.path(job, WORK):  # give the space of a full disk back
            shutil.rmtree(cwd, ignore_errors=True)
        raise
    finally:
        with open(claim, "w") as stream:
            stream.write(outcome)


def wait_for_copy(claim: str, cwd: str) -> None:
    """Waits until another process has copied the job's files. Raises OSError if it fails, or takes too long."""
    give_up_at = time.monotonic() + COPY_TIMEOUT_S
    while time.monotonic() < give_up_at:
        with open(claim) as stream:  # opened anew: then NFS asks the server
            outcome = stream.read()
        if outcome == PLACED:
            return
        if outcome:
            raise OSError(f"another process of the job failed: {outcome}")
        time.sleep(TICK_S)
    raise OSError(f"another process of the job still copies them to {cwd}")


def copy_tree(tree: str, folder: str) -> None:
    """Copies a tree's files and folders, with their modes and times, over those in a folder. Raises OSError."""
    for path, folders, names in os.walk(tree, onerror=fail):
        there = os.path.normpath(os.path.join(folder, os.path.relpath(path, tree)))
        for name in folders:
            os.makedirs(os.path.join(there, name), mode=0o755, exist_ok=True)
        for name in names:
            if path != tree or name != COMPLETE:
                copy_file(os.path.join(path, name), os.path.join(there, name))


def fail(error: OSError) -> None:
    """Raises an error of os.walk."""
    raise error


def copy_file(source: str, target: str) -> None:
    """Copies a file with its mode and times: never as a hard link, because programs overwrite files. Raises OSError."""
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename2 or error.filename or target) from error
    shutil.copystat(source, target)


# -- what the job adds ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A file of a job. name: its path below the folder with the job's results. what: why it is no regular file."""

    path: str
    name: str
    size_bytes: int
    mtime_ns: int
    what: str | None = None


def find_new(job: str) -> Iterator[Entry | None]:
    """Yields the files that a job has created or changed on this host, and None for each other entry on the way.

    Python's caches of compiled modules do not count.
    """
    since = 0
    try:
        with open(job_folder.path(job, PLACED), "rb") as stream:
            folder = os.fsdecode(stream.read())
            since = os.fstat(stream.fileno()).st_ctime_ns
    except FileNotFoundError:
        pass
    else:
        yield from find_below(folder, since=since)
    if not os.path.exists(job_folder.path(job, "placing-1")):  # a new node, with what earlier attempts have saved
        since = 0
    for entry in find_below(job_folder.path(job, OUTPUT), prefix=f"{OUTPUT}/"):
        is_old = entry is not None and entry.mtime_ns < since and entry.name.startswith(f"{OUTPUT}/{SAVED}/")
        yield None if is_old else entry


def find_below(root: str, *, since: int = 0, prefix: str = "") -> Iterator[Entry | None]:
    """Yields the files below a folder, the topmost first, as find_new. since: the earliest ctime."""
    waiting = deque([""])
    while waiting:
        below = waiting.popleft()
        try:
            entries = os.scandir(os.path.join(root, below))
        except OSError as error:
            if below:
                yield Entry(os.path.join(root, below), prefix + below, 0, 0, job_folder.describe(error))
            continue
        with entries:
            for entry in list_entries(entries):
                name = below + entry.name
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        waiting.append(name + "/")
                    yield None
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # deleted meanwhile
                    continue
                what = None if entry.is_file(follow_symlinks=False) else "a link" if entry.is_symlink() else "no file"
                is_new = status.st_ctime_ns >= since
                yield Entry(entry.path, prefix + name, status.st_size, status.st_mtime_ns, what) if is_new else None


def list_entries(entries: Iterator["os.DirEntry[str]"]) -> Iterator["os.DirEntry[str]"]:
    """Yields a folder's entries, as far as they can be read."""
    with contextlib.suppress(OSError):  # such as on a volume whose server has just died
        yield from entries


def count_new(job: str, host: str, is_copied: Callable[[Entry], bool]) -> NewFiles:
    """Counts the files that a job has created on this host, in limited time. is_copied: whether S3 has one."""
    give_up_at = time.monotonic() + MOST_S
    count, copied, is_part = 0, 0, False
    folders: dict[str, None] = {}
    for number, entry in enumerate(find_new(job)):
        if entry is not None and is_copied(entry):
            copied += 1
        elif entry is not None and entry.what is None:
            count += 1
            if len(folders) < MOST_FOLDERS:
                folders[printable(entry.name[: entry.name.find("/") + 1], LONGEST_FOLDER)] = None
        if number >= MOST_ENTRIES or (number % 256 == 0 and time.monotonic() > give_up_at):
            is_part = True
            break
    return NewFiles(host=host, count=count, copied=copied, folders=tuple(folders), is_part=is_part)
