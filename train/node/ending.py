"""Ends what is left of a job on hosts of it, and tells what does not end.

Python 3.6 and later, standard library only.
"""

import json
import os
import shlex
import subprocess
import time

import processes
import ssh_proxy

SEARCH_TIMEOUT_S = 8.0
CONNECT_S, SILENT_CONNECT_S = 5, 2
AGAIN_WITHIN_S = 2.5  # what ends so soon without an answer was cut off, as by a kill: it is worth another try


def end_on(job, unclean, silent=()):
    """End what is left of a job on this host, the first of job["hosts"], and on those of `unclean`, side by side.

    silent: the names of those that are not likely to answer.
    Returns what is left, {host name: [[pid, command line], ...]}; a pid of 0 stands for a host that could not be
    searched.
    """
    head = job["hosts"][0]
    searches = []
    for host in unclean:
        timeout_s = SILENT_CONNECT_S if host["name"] in silent else CONNECT_S
        ssh = [] if host == head else ssh_proxy.ssh_command_to(host, connect_timeout_s=timeout_s)
        searches.append((host["name"], Search(job, ssh or ["/bin/sh", "-c"], host)))
    left = {}
    _, here = processes.end(job["job"])
    if here:
        left[head["name"]] = [[pid, words] for pid, _, words in here]
    deadline = time.monotonic() + SEARCH_TIMEOUT_S
    for name, search in searches:
        found = search.read(deadline)
        if found:
            left[name] = found
    return left


class Search(object):
    """role.py at work on a host, which ends what is left there; as root, where that is possible.

    Only root sees what a process that belongs to root has in its environment. It leaves no files of its own behind.
    prefix: the words that lead to the host. place: as the job's order has that.
    """

    def __init__(self, job, prefix, place=None):
        place = place or {}
        role = os.path.join(place.get("programs", os.path.dirname(os.path.abspath(__file__))), "role.py")
        python = [place.get("python", job["python"]), "-B"] + ssh_proxy.PYTHON_FLAGS
        words = " ".join(shlex.quote(word) for word in python + [role, "end", job["job"]])
        program = "if sudo -n true 2>/dev/null; then exec sudo -n %s; else exec %s; fi" % (words, words)
        self._words = prefix + [program]
        self._began_at = time.monotonic()
        self._begin()

    def _begin(self):
        self._child = subprocess.Popen(
            self._words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def read(self, deadline):
        """What it found, [[pid, command line], ...]. deadline: of the monotonic clock."""
        found, said = self._wait(deadline)
        if found is None and time.monotonic() < self._began_at + AGAIN_WITHIN_S:
            self._begin()
            found, said = self._wait(deadline)
        return [[0, "could not be searched: " + (said or "no answer")]] if found is None else found

    def _wait(self, deadline):
        """(what it found or None, what it said)."""
        try:
            out, said = self._child.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._child.kill()
            out, said = self._child.communicate()
        last = out.decode("utf-8", "replace").strip().rpartition("\n")[2]
        answered = self._child.returncode == 0 and last.startswith("[")
        return parse_found(last) if answered else None, said.decode("utf-8", "replace").strip()


def parse_found(text):
    """What role.py says that it could not end, [[pid, command line], ...]; None where that cannot be understood."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) and all(map(is_process, found)) else None


def is_process(one):
    return isinstance(one, list) and len(one) == 2 and isinstance(one[0], int) and isinstance(one[1], str)
