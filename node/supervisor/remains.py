"""Ends the processes that a job has left on its hosts."""

import asyncio
from collections.abc import Collection, Sequence

from foundation.decode import decode
from foundation.remote_command import RemoteCommand, run_program
from node import ssh
from node.children import Ended, end_processes, run
from node.protocol import JobHost, Left, LeftOnHost
from node.setup import process_tree
from node.wire import PidAndCommand

SEARCH_TIMEOUT_S = 8.0
CONNECT_S, SILENT_CONNECT_S = 5, 2


async def end_on(
    job: str,
    unclean: Sequence[JobHost],
    silent: Collection[str] = (),
    *,
    head: JobHost,
    boots: dict[str, str] | None = None,
) -> Left:
    """Ends a job's processes on this host, its head, and on the hosts of `unclean`, in parallel.

    silent: the names of hosts that will probably not answer. boots: is filled with the boots of the hosts that answer,
    by name.
    Returns the processes that remain, {host name: [(pid, command line), ...]}; pid 0: the host could not be searched.
    """
    searches = []
    for host in unclean:
        program = search_program(job, host)
        timeout_s = SILENT_CONNECT_S if host.name in silent else CONNECT_S
        words = program.here() if host == head else ssh.ssh_command(host, program, connect_timeout_s=timeout_s)
        searches.append(search(words))
    searching = asyncio.gather(*searches)
    left: Left = {}
    here = await end_processes(lambda: process_tree.find(job), process_tree.our_programs_last)
    if here:
        left[head.name] = [(pid, words) for pid, _, words in here]
    for host, (remaining, boot) in zip(unclean, await searching, strict=True):
        if remaining:
            left[host.name] = remaining
        if boots is not None and boot:
            boots[host.name] = boot
    return left


def search_program(job: str, host: JobHost) -> RemoteCommand:
    """Returns the command that ends the job's processes on a host; on a node, as root if possible.

    Only root can read the environment of root's processes. It writes no files.
    """
    first, *more = ssh.words_on(host, "agent", "end", job, "--boot")
    program = run_program(first, "-B", *more)
    if host.own_host is None:  # on a user's own host, sudo would report each attempt to its administrators
        as_root = run_program("sudo", "-n", first, "-B", *more)
        program = RemoteCommand("if sudo -n true 2>/dev/null; then ", as_root, "; else ", program, "; fi")
    return program


async def search(words: Sequence[str], timeout_s: float = SEARCH_TIMEOUT_S) -> tuple[list[PidAndCommand], str]:
    """Runs a search. Returns the processes that it could not end, and the host's boot, "" if it does not answer."""
    ended = await run(words, timeout_s)
    found, boot = read_answer(ended)
    message = ended.stderr.decode("utf-8", "replace").strip()
    return ([(0, "could not be searched: " + (message or "no answer"))] if found is None else found), boot


def read_answer(ended: Ended) -> tuple[list[PidAndCommand] | None, str]:
    """Returns what a search has printed: the processes that remain, None if it failed; the host's boot."""
    before, _, last = ended.stdout.strip().rpartition(b"\n")
    boot = before.rpartition(b"\n")[2].decode("ascii", "replace")
    try:
        return (decode(last, LeftOnHost) if ended.code == 0 else None), boot
    except ValueError:
        return None, boot
