"""Ends the processes that a job has left on its hosts."""

import asyncio
import contextlib
from collections.abc import Collection, Sequence

from foundation.decode import decode
from foundation.remote_command import RemoteCommand, run_program
from node import ssh
from node.children import end_processes, run
from node.protocol import JobHost, Left
from node.setup import process_tree
from node.wire import Remains

SEARCH_TIMEOUT_S = 8.0
CONNECT_S, SILENT_CONNECT_S = 5, 2


async def end_on(
    job: str,
    unclean: Sequence[JobHost],
    silent: Collection[str] = (),
    *,
    head: JobHost,
) -> tuple[Left, dict[str, str]]:
    """Ends a job's processes on this host, its head, and on the hosts of `unclean`, in parallel.

    silent: the names of hosts that will probably not answer. Returns the processes that remain, and the boots of the
    hosts of `unclean` that answer, by their names.
    """
    searches = []
    for host in unclean:
        program = search_program(job, host)
        timeout_s = SILENT_CONNECT_S if host.name in silent else CONNECT_S
        words = program.here() if host == head else ssh.ssh_command(host, program, connect_timeout_s=timeout_s)
        searches.append(search(words))
    searching = asyncio.gather(*searches)
    here = await end_processes(lambda: process_tree.find(job), process_tree.our_programs_last)
    found = {host.name: remains for host, remains in zip(unclean, await searching, strict=True)}
    left = {head.name: [(pid, words) for pid, _, words in here]} if here else {}
    left |= {name: remains.left for name, remains in found.items() if remains.left}
    return left, {name: remains.boot for name, remains in found.items()}


def search_program(job: str, host: JobHost) -> RemoteCommand:
    """Returns the command that ends the job's processes on a host; on a node, as root if possible.

    Only root can read the environment of root's processes. It writes no files.
    """
    first, *more = ssh.words_on(host, "agent", "end", job)
    program = run_program(first, "-B", *more)
    if host.own_host is None:  # on a user's own host, sudo would report each attempt to its administrators
        as_root = run_program("sudo", "-n", first, "-B", *more)
        program = RemoteCommand("if sudo -n true 2>/dev/null; then ", as_root, "; else ", program, "; fi")
    return program


async def search(words: Sequence[str], timeout_s: float = SEARCH_TIMEOUT_S) -> Remains:
    """Runs a search. Returns its answer; for a host that does not answer, a process with pid 0."""
    ended = await run(words, timeout_s)
    if ended.code == 0:
        with contextlib.suppress(ValueError):
            return decode(ended.stdout.strip().rpartition(b"\n")[2], Remains)
    message = ended.stderr.decode("utf-8", "replace").strip()
    return Remains(left=[(0, "could not be searched: " + (message or "no answer"))])
