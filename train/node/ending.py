"""Ends what is left of a job on hosts of it, and tells what does not end.

Python 3.6 and later, standard library only.
"""

import json
import os
import subprocess
import time

import processes
import ssh_proxy

SEARCH_TIMEOUT_S = 8.0
CONNECT_S, SILENT_CONNECT_S = 5, 2


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
        ssh = [] if host == head else ssh_proxy.ssh_command(host["ip"], connect_timeout_s=timeout_s)
        searches.append((host["name"], start_search(job, ssh or ["/bin/sh", "-c"])))
    left = {}
    _, here = processes.end(job["job"])
    if here:
        left[head["name"]] = [[pid, words] for pid, _, words in here]
    deadline = time.monotonic() + SEARCH_TIMEOUT_S
    for name, search in searches:
        found = read_search(search, deadline)
        if found:
            left[name] = found
    return left


def start_search(job, prefix):
    """Have role.py end what is left on a host; as root, where that is possible. prefix: the words that lead there.

    Only root sees what a process that belongs to root has in its environment. It leaves no files of its own behind.
    """
    role = os.path.join(os.path.dirname(os.path.abspath(__file__)), "role.py")
    words = " ".join([job["python"], "-B"] + ssh_proxy.PYTHON_FLAGS + [role, "end", job["job"]])
    program = "if sudo -n true 2>/dev/null; then exec sudo -n %s; else exec %s; fi" % (words, words)
    return subprocess.Popen(
        prefix + [program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def read_search(search, deadline):
    """What a search found, [[pid, command line], ...]. deadline: of the monotonic clock."""
    try:
        out, said = search.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        search.kill()
        out, said = search.communicate()
    last = out.decode("utf-8", "replace").strip().rpartition("\n")[2]
    if search.returncode != 0 or not last.startswith("["):
        return [[0, "could not be searched: " + (said.decode("utf-8", "replace").strip() or "no answer")]]
    return json.loads(last)
