"""Ends what is left of a job on every host of it, and tells what does not end.

Python 3.6 and later, standard library only.
"""

import json
import os
import subprocess

import processes
import ssh_proxy

SEARCH_TIMEOUT_S = 15.0


def end_on_all_hosts(job):
    """Search all hosts side by side, this one (the first) included.

    Returns what is left, {host name: [[pid, command line], ...]}; a pid of 0 stands for a host that could not be
    searched.
    """
    searches = [(host["name"], start_search(job, host["ip"])) for host in job["hosts"][1:]]
    left = {}
    _, here = processes.end(job["job"])
    if here:
        left[job["hosts"][0]["name"]] = [[pid, words] for pid, _, words in here]
    for name, search in searches:
        found = read_search(search)
        if found:
            left[name] = found
    return left


def start_search(job, address):
    """Have role.py on another host end what is left there."""
    role = os.path.join(os.path.dirname(os.path.abspath(__file__)), "role.py")
    return subprocess.Popen(
        ssh_proxy.ssh_command(address) + ["exec %s %s end %s" % (job["python"], role, job["job"])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def read_search(search):
    """What a search found, [[pid, command line], ...]."""
    try:
        out, said = search.communicate(timeout=SEARCH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        search.kill()
        out, said = search.communicate()
    if search.returncode != 0:
        return [[0, "could not be searched: " + (said.decode("utf-8", "replace").strip() or "no answer")]]
    return json.loads(out.decode("utf-8"))
