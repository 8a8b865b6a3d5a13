"""Ends what is left of a job on hosts of it, and tells what does not end."""

import shlex
import subprocess
import time
from collections.abc import Collection, Sequence
from typing import Optional

from bootstrap.node import process_tree
from train.job.protocol import JobHost, Left, parse_left
from train.node.programs import CODE_DIR, program_words
from train.node.supervisor import ssh_proxy
from train.node.wire import Found

SEARCH_TIMEOUT_S = 8.0
CONNECT_S, SILENT_CONNECT_S = 5, 2
AGAIN_WITHIN_S = 2.5  # what ends so soon without an answer was cut off, as by a kill: it is worth another try


def end_on(job: str, unclean: Sequence[JobHost], silent: Collection[str] = (), *, head: JobHost, python: str) -> Left:
    """End what is left of a job on this host, its head, and on those of `unclean`, side by side.

    silent: the names of those that are not likely to answer. python: the nodes'.
    Returns what is left, {host name: [(pid, command line), ...]}; a pid of 0 stands for a host that could not be
    searched.
    """
    searches = []
    for host in unclean:
        timeout_s = SILENT_CONNECT_S if host.name in silent else CONNECT_S
        prefix = ["/bin/sh", "-c"] if host == head else ssh_proxy.ssh_command_to(host, connect_timeout_s=timeout_s)
        searches.append((host.name, Search(job, prefix, host, python=python)))
    left: Left = {}
    _, here = process_tree.end(job)
    if here:
        left[head.name] = [(pid, words) for pid, _, words in here]
    deadline = time.monotonic() + SEARCH_TIMEOUT_S
    for name, search in searches:
        found = search.read(deadline)
        if found:
            left[name] = found
    return left


class Search:
    """role.py at work on a host, which ends what is left there; as root, where that is possible.

    Only root sees what a process that belongs to root has in its environment. It leaves no files of its own behind.
    prefix: the words that lead to the host. python: the nodes'; other hosts have one of their own.
    """

    def __init__(self, job: str, prefix: Sequence[str], host: JobHost, *, python: str) -> None:
        place = host.place
        code_dir = CODE_DIR if place is None else place.code_dir
        first, *more = program_words(
            "role", "end", job, python=python if place is None else place.python, code_dir=code_dir
        )
        words = shlex.join([first, "-B", *more])
        program = f"if sudo -n true 2>/dev/null; then exec sudo -n {words}; else exec {words}; fi"
        self._words = [*prefix, program]
        self._began_at = time.monotonic()
        self._child = self._begin()

    def _begin(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def read(self, deadline: float) -> list[Found]:
        """What it found and could not end. deadline: of the monotonic clock."""
        found, said = self._wait(deadline)
        if found is None and time.monotonic() < self._began_at + AGAIN_WITHIN_S:
            self._child = self._begin()
            found, said = self._wait(deadline)
        return [(0, "could not be searched: " + (said or "no answer"))] if found is None else found

    def _wait(self, deadline: float) -> tuple[Optional[list[Found]], str]:
        """(what it found or None, what it said)."""
        try:
            out, said = self._child.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._child.kill()
            out, said = self._child.communicate()
        last = out.strip().rpartition(b"\n")[2]
        try:
            found = parse_left(last) if self._child.returncode == 0 else None
        except ValueError:
            found = None
        return found, said.decode("utf-8", "replace").strip()
