"""Copies the files that a job leaves in $CLUSTER_OUTPUT_DIR to [data] results, while it runs and at its end.

Only complete files are copied: those that no process has open for writing, and that have not changed for a moment or
have been replaced. An object appears as a whole, after S3 has verified its checksum, and only if the file did not
change meanwhile. The list of copied files, for the job's later attempts, is jobs/ID/copied.

A process that is killed may leave a part of a file. Such a file is copied under another name, so that it does not
replace a complete object: one that was open for writing before this job's agent killed the process, or, if something
else did, at the last look before or changed since. A part of a file that is only appended to, as a log is, is complete.

What a program saves at a URL that its command names is in s3/BUCKET/KEY there, and is copied to that URL. What S3 has
of it is brought there before the processes start (local_data.py).
"""

import contextlib
import glob
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from foundation.decode import decode
from node import job_folder
from node.agent import work_folder
from node.protocol import SAVED_AT, printable
from node.staging import s3, words
from node.staging.s3_store import Changed, Version

EVERY_S = 10.0
QUIET_S = 5.0
GIVE_UP_S = 180.0  # after the job's end, without a file that could be copied
RETRY_S = 5.0
MOST_NAMED = 5  # files in a message
LONGEST_NAME = 80  # characters of a file in a message
COPIED = "copied"
PLACE = work_folder.SAVED
INCOMPLETE = ".incomplete"
WRITES = os.O_WRONLY | os.O_RDWR
File = tuple[int, int]  # device and inode
Copied = tuple[int, int, str]  # the version, and the object's ETag


class Outputs:
    """The copy of a job's files on this node, in a thread. env: that of its processes.

    message: shows a line to the user; called in that thread.
    """

    def __init__(self, job: str, env: Mapping[str, str], message: Callable[[str], None]) -> None:
        self._url = f"{env.get('CLUSTER_OUTPUT_URL', '')}{work_folder.OUTPUT}/{env['CLUSTER_HOST']}/"
        self._host, self._folder = env["CLUSTER_HOST"], env["CLUSTER_OUTPUT_DIR"]
        self._list = job_folder.path(job, COPIED)
        self._store = s3.Store(env)
        self._message = message
        self._reported: set[str] = set()
        self._copied: dict[str, Copied] = {}
        with contextlib.suppress(FileNotFoundError, ValueError):  # ValueError: cut off by a full disk
            self._copied = decode(Path(self._list).read_bytes(), dict[str, Copied])
        self._looked_ns, self._open = 0, dict[File, bool]()  # the last look at find_written
        self._changing: dict[str, File] = {}  # the files that were not quiet then
        self._open_at_end = set[File]()
        self._is_killed = False
        self._ending = threading.Event()
        self._saved = env.get(SAVED_AT, "").split()
        self._thread = threading.Thread(target=self._run, name="outputs", daemon=True)

    def begin(self) -> None:
        """Begins to copy."""
        self._thread.start()

    def note_open(self) -> None:
        """Notes which files are open for writing now, before processes are killed."""
        self._open_at_end |= {file for file, is_appended in find_written().items() if not is_appended}

    def note_killed(self) -> None:
        """Notes that a process was killed, and not by its agent."""
        self._is_killed = True

    def find_saved(self) -> list[tuple[s3.Entry, str]]:
        """Returns the objects that exist where the job saves, unless they or newer files are here, with their paths.

        Raises OSError, ValueError.
        """
        found = {}
        for url in self._saved:
            os.makedirs(os.path.dirname(self.paths[url]), exist_ok=True)
            beside = self._store.list(url.rpartition("/")[0], below=False)
            for entry in (*(one for one in beside if one.url.startswith(url)), *self._store.list(url)):
                name = words.make_path(PLACE, entry.url)
                copied, version = self._copied.get(name), find_version(os.path.join(self._folder, name))
                is_newer = version is not None and (copied is None or version != copied[:2])
                is_same = version is not None and copied is not None and copied[2] == entry.etag
                if entry.size_bytes and not is_newer and not is_same and not entry.url.endswith(INCOMPLETE):
                    found[entry] = os.path.join(self._folder, name)
        return list(found.items())

    def note_saved(self, saved: Sequence[tuple[s3.Entry, str]]) -> None:
        """Notes that these objects of `find_saved` are here."""
        for entry, path in saved:
            version = find_version(path)
            if version is not None:
                self._copied[words.make_path(PLACE, entry.url)] = (*version, entry.etag)
        self._note()

    @property
    def paths(self) -> dict[str, str]:
        """What replaces the URLs in the job's words."""
        return {url: words.make_path(os.path.join(self._folder, PLACE), url) for url in self._saved}

    def _make_url(self, name: str) -> str:
        saved = words.find_url(name[len(PLACE) + 1 :], self._saved) if name.startswith(f"{PLACE}/") else None
        return saved or self._url + name

    def finish(self) -> None:
        """Copies the rest, once no process of the job writes any longer."""
        self._ending.set()
        self._thread.join()
        give_up_at = time.monotonic() + GIVE_UP_S
        parts = {one.name for one in self._find_changed() if self._is_part(one)}
        left = self.copy(parts)
        while left and time.monotonic() < give_up_at:
            time.sleep(RETRY_S)
            before, left = left, self.copy(parts)
            if len(left) < len(before):
                give_up_at = time.monotonic() + GIVE_UP_S

    def report_left(self) -> bool:
        """Names the files that are not copied. Returns whether there are some."""
        left = [one.name for one in self._find_changed()]
        if left:
            more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
            names = ", ".join(printable(name, LONGEST_NAME) for name in left[:MOST_NAMED])
            self._message(f"{self._host}: not copied to {self._url}: {names}{more}; they are in {self._folder}")
        return bool(left)

    def _run(self) -> None:
        while not self._ending.wait(EVERY_S):
            self.copy()

    def _is_part(self, entry: work_folder.Entry) -> bool:
        """Whether the process that wrote a file was killed meanwhile, or may have been."""
        try:
            file, _ = find_file_and_version(entry.path)
        except FileNotFoundError:
            return False
        is_appended = self._open.get(file)
        is_new = entry.mtime_ns > self._looked_ns and not is_appended
        return file in self._open_at_end or (self._is_killed and (is_appended is False or is_new))

    def _find_complete(self, entry: work_folder.Entry, before: File | None) -> Version | None:
        """Returns a file's version, or None while it is written. before: the file of this name that was not quiet.

        A new file that has taken the name, as of checkpoints that are saved every second, is never quiet, but complete.
        Raises FileNotFoundError.
        """
        file, version = find_file_and_version(entry.path)
        if self._ending.is_set() or time.time_ns() - version[1] > QUIET_S * 1e9:
            return version if file not in self._open else None
        self._changing[entry.name] = file
        return version if before not in (None, file) and file not in find_written() else None

    def copy(self, parts: Collection[str] = ()) -> list[str]:
        """Copies the complete files that are new or have changed, the oldest first. Returns those to try again later.

        parts: files that are copied as NAME.incomplete.
        """
        changed = self._find_changed()
        self._looked_ns, self._open = time.time_ns(), find_written() if changed else {}
        before, self._changing = self._changing, {}
        left = []
        for entry in changed:
            try:
                version = self._find_complete(entry, before.get(entry.name))
                if version is None:
                    left.append(entry.name)
                    continue
                url = self._make_url(entry.name) + (INCOMPLETE if entry.name in parts else "")
                etag = self._store.put_file(entry.path, url, version)
            except FileNotFoundError:  # deleted or renamed meanwhile
                continue
            except Changed:
                left.append(entry.name)
                continue
            except (OSError, ValueError) as error:  # ValueError: no object can have its name
                self._report_once(str(error))
                if isinstance(error, OSError) and getattr(error, "code", "") != "NoSuchBucket":
                    left.append(entry.name)
                continue
            self._copied[entry.name] = (*version, etag)
            if entry.name in parts:
                name, url = printable(entry.name, LONGEST_NAME), printable(url, LONGEST_NAME)
                self._message(
                    f"{self._host}: {name} is copied as {url}: its program was killed, perhaps while it wrote the file"
                )
        if len(left) < len(changed):
            self._note()
        return left

    def is_copied(self, entry: work_folder.Entry) -> bool:
        """Whether S3 has a file of the job, as it is now."""
        name = entry.path.removeprefix(f"{self._folder}/")
        return self._copied.get(name, ())[:2] == (entry.size_bytes, entry.mtime_ns)

    def _find_changed(self) -> list[work_folder.Entry]:
        """Returns the files that are new or have changed, the oldest first."""
        found = [entry for entry in work_folder.find_below(self._folder) if entry is not None and entry.what is None]
        changed = [one for one in found if not self.is_copied(one)]
        for_s3 = [one for one in changed if self._make_url(one.name).startswith("s3://")]  # [data] results may not be
        return sorted(for_s3, key=lambda one: one.mtime_ns)

    def _note(self) -> None:
        try:
            job_folder.write_whole(self._list, msgspec.json.encode(self._copied))
        except OSError as error:  # such as a full disk: a later attempt copies them again
            self._report_once(job_folder.describe(error))

    def _report_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._message(f"{self._host}: $CLUSTER_OUTPUT_DIR cannot be copied now: {text}")


def find_version(path: str) -> Version | None:
    """Returns the version of a file, or None."""
    with contextlib.suppress(FileNotFoundError):
        return find_file_and_version(path)[1]
    return None


def find_file_and_version(path: str) -> tuple[File, Version]:
    """Returns what identifies a file on this host, and its version, at one moment. Raises FileNotFoundError."""
    status = os.stat(path)
    return (status.st_dev, status.st_ino), (status.st_size, status.st_mtime_ns)


def find_written() -> dict[File, bool]:
    """Returns the files that a process of this user has open for writing, and whether they are only appended to."""
    found: dict[File, bool] = {}
    for path in glob.glob("/proc/[0-9]*/fdinfo/*"):
        with contextlib.suppress(OSError, StopIteration):  # a process or a file that has gone, or is another user's
            line = next(line for line in Path(path).read_text().splitlines() if line.startswith("flags:"))
            flags = int(line.split()[1], 8)
            if flags & WRITES:
                file, _ = find_file_and_version(path.replace("/fdinfo/", "/fd/"))
                found[file] = bool(flags & os.O_APPEND) and found.get(file, True)
    return found
