"""Sends files that a job needs, below ~/.cluster, from this host, the head, to another node.

    send_files IP PATH...     such as tree/DIGEST, env/DIGEST, runtime/DIGEST; the latter two with their Python

A folder is valid once it has its mark .complete, which is sent last.
"""

import os
import subprocess
import sys
from collections.abc import Sequence

from foundation.remote_command import RemoteCommand
from node.agent.work_folder import COMPLETE
from node.protocol import JobHost
from node.ssh import ssh_command


def main() -> int:
    """Sends the files that the command line names."""
    address, *paths = sys.argv[1:]
    home = os.path.join(os.path.expanduser("~"), ".cluster")
    paths = with_pythons(home, paths)
    for words in (["--exclude=" + COMPLETE, *paths], [mark for path in paths for mark in find_mark(home, path)]):
        if words:
            send(home, address, words)
    return 0


def with_pythons(home: str, paths: Sequence[str]) -> list[str]:
    """Returns the paths, preceded by the Pythons below `home` that they link to."""
    pythons = []
    for path in paths:
        python = os.path.realpath(os.path.join(home, path, "bin", "python"))
        parts = os.path.relpath(python, os.path.realpath(home)).split(os.sep)
        if path.startswith(("env/", "runtime/")) and parts[0] == "python":
            pythons.append(os.path.join(*parts[:2]))
    return [*dict.fromkeys(pythons), *paths]


def find_mark(home: str, path: str) -> list[str]:
    """Returns the path of a folder's mark in a list, which is empty if the folder has none."""
    mark = os.path.join(path, COMPLETE)
    return [mark] if os.path.exists(os.path.join(home, mark)) else []


def send(home: str, address: str, words: Sequence[str]) -> None:
    """Packs files on this host and unpacks them on the other. Exits with an error message if that fails."""
    remote = RemoteCommand("mkdir -p .cluster && tar -C .cluster -xf -")
    tar = subprocess.Popen(["tar", "-C", home, "-cf", "-", *words], stdout=subprocess.PIPE)
    assert tar.stdout is not None
    with tar.stdout:
        done = subprocess.run(
            ssh_command(JobHost(name=address, ip=address), remote),
            stdin=tar.stdout,
            stderr=subprocess.PIPE,
            check=False,
        )
    if done.returncode or tar.wait():
        sys.exit(f"sending {' '.join(words)} failed: {done.stderr.decode('utf-8', 'replace').strip()}")
