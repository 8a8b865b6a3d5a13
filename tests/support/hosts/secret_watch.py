"""Searches command lines, environments and files of hosts and of this machine for secrets."""

import mmap
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CHECK_EVERY_S = 0.02
PLACES = ("home", "root", "tmp", "run", "etc", "var/log", "var/tmp", "dev/shm")
"""The folders to which a node's programs may write."""


@dataclass
class Watch:
    """The command lines and environments of all processes on this machine and its hosts during the watch."""

    command_lines: set[str] = field(default_factory=set)
    holders: dict[bytes, set[str]] = field(default_factory=dict)  # environment -> command lines
    namespaces: dict[bytes, set[str]] = field(default_factory=dict)  # environment -> pid namespaces
    done: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.time)
    _known: dict[str, bytes] = field(default_factory=dict)

    def look(self) -> None:
        while not self.done.wait(CHECK_EVERY_S):
            for entry in os.listdir("/proc"):
                if entry.isdigit():
                    self._look_at(entry)

    def _look_at(self, entry: str) -> None:
        try:
            words = _read(f"/proc/{entry}/cmdline")
            if self._known.get(entry) == words:  # its environment is known
                return
            env = _read(f"/proc/{entry}/environ")
            namespace = os.readlink(f"/proc/{entry}/ns/pid")
            if _read(f"/proc/{entry}/cmdline") != words:  # the process has changed: the next look reads it
                return
        except OSError:  # it has ended meanwhile
            return
        line = words.replace(b"\0", b" ").decode(errors="replace").strip()
        self._known[entry] = words
        self.command_lines.add(line)
        self.holders.setdefault(env, set()).add(line)
        self.namespaces.setdefault(env, set()).add(namespace)

    def lines_with(self, secret: str) -> list[str]:
        return [line for line in self.command_lines if secret in line]

    def holders_of(self, secret: str) -> set[str]:
        return set().union(*(lines for env, lines in self.holders.items() if secret.encode() in env))


def _read(path: str) -> bytes:
    """Reads a file of /proc. A stream would take most of the time, since each look reads hundreds of files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        content = os.read(descriptor, 1 << 16)
        while piece := os.read(descriptor, 1 << 16):
            content += piece
        return content
    finally:
        os.close(descriptor)


@contextmanager
def watching() -> Iterator[Watch]:
    watch = Watch()
    thread = threading.Thread(target=watch.look)
    thread.start()
    try:
        yield watch
    finally:
        watch.done.set()
        thread.join()


def files_with(root: Path, secrets: Iterable[str], *, since: float = 0.0) -> list[str]:
    """The files of a host that contain a secret and were written or changed after `since`."""
    found = []
    for place in PLACES:
        for folder, _, names in os.walk(root / place):
            for path in (Path(folder, name) for name in names):
                try:
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode) and status.st_ctime > since and has_any(path, secrets):
                        found.append(str(path.relative_to(root)))
                except FileNotFoundError:  # replaced meanwhile by another file, which is found, too
                    continue
    return found


def has_any(path: Path, secrets: Iterable[str]) -> bool:
    with path.open("rb") as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            return False
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(secret.encode()) >= 0 for secret in secrets)
