"""Counts the bytes that processes exchange with hosts outside their job, such as S3, from what `ss` prints.

The kernel counts what a process reads from files, not what it receives with recv(2). Hosts of the job do not count:
programs that wait for each other may go on sending.
"""

import re
from collections.abc import Collection

from node.children import run

COMMAND = ("ss", "--no-header", "--tcp", "--numeric", "--processes", "--info", "--oneline", "state", "established")
TIMEOUT_S = 5.0  # it reads all of /proc: on a busy node, none within 1 s looked like a stream that had ended
PEER = re.compile(r"^\d+ +\d+ +\S+ +\[?(?:::ffff:)?([^\]\s]+)\]?:\d+ ")
PIDS = re.compile(r"\bpid=(\d+)")
COUNTS = re.compile(r" bytes_(?:acked|received):(\d+)")


async def count_bytes(pids: Collection[int], hosts: Collection[str]) -> int:
    """The bytes of the open connections of these processes. hosts: addresses that do not count. 0 without `ss`."""
    try:
        ended = await run(COMMAND, TIMEOUT_S)
    except OSError:  # not installed
        return 0
    return sum_bytes(ended.stdout.decode("utf-8", "replace"), pids, hosts)


def sum_bytes(text: str, pids: Collection[int], hosts: Collection[str]) -> int:
    """The sum of what ss has printed for these processes. Pure."""
    total = 0
    for line in text.splitlines():
        peer = PEER.match(line)
        counts = peer is not None and peer[1] not in hosts and not peer[1].startswith(("127.", "::1"))
        if counts and any(int(pid) in pids for pid in PIDS.findall(line)):
            total += sum(int(count) for count in COUNTS.findall(line))
    return total
