"""Watches the volumes of a job on its node: a dead server must end the job, not stall it silently."""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from node.children import run
from node.setup.volumes import volume_probe

EVERY_S = 3.0
LIMIT_S = 7.0  # with EVERY_S, and the time until the supervisor has ended the job, less than 15 s
AFTER_FAILURE_S = 4.0
RELEASE_S = 10.0
NOT_MOUNTED = "it is not mounted"
ANSWERS = ("No such file or directory", "Permission denied")
"""A server that works has one of these for a name that does not exist."""


class Dead(NamedTuple):
    """A volume that does not work on this node. text: the volume, its server, and the reason."""

    mount: str
    text: str


async def find_dead(mounts: Sequence[str], limit_s: float = LIMIT_S) -> Dead | None:
    """Returns the first of these volumes that does not work on this node; None if all work.

    All are checked at once, in at most about limit_s seconds, even if a server does not respond at all.
    """

    async def check(mount: str) -> Dead | None:
        why = await ask(mount, limit_s)
        return None if why is None else Dead(mount, describe(mount, why))

    for checking in asyncio.as_completed(map(check, mounts)):
        dead = await checking
        if dead is not None:
            return dead
    return None


async def ask(mount: str, limit_s: float = LIMIT_S) -> str | None:
    """Returns why a mount does not work; None if it works.

    A child process asks its server, so that a dead one cannot block this process.
    """
    if not volume_probe.is_mounted(mount):
        return NOT_MOUNTED
    name = os.path.join(mount, f".cluster-volume-{os.urandom(8).hex()}")  # it is in no cache
    ended = await run(["stat", name], limit_s, env={**os.environ, "LC_ALL": "C"}, start_new_session=True)
    if ended.code is None:
        return f"no answer for {limit_s:g} s"
    error = ended.stderr.decode("utf-8", "replace").strip().rpartition(": ")[2]
    return None if error in ANSWERS else error or f"its probe ended with exit code {ended.code}"


def describe(mount: str, answer: str) -> str:
    """Describes a volume that does not work. A FUSE file system ends with its connection: then nothing is mounted."""
    try:
        with open(volume_probe.NOTES) as stream:
            server = str(json.load(stream)[mount]["server"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"volume {mount}: {answer}"
    return f"volume {mount} of {server}: {'the connection is lost' if answer == NOT_MOUNTED else answer}"


async def watch(mounts: Sequence[str], message: Callable[[str], None]) -> None:
    """Watches volumes. Once one does not work, reports it and releases the processes that wait for it."""
    dead = None
    while dead is None:
        await asyncio.sleep(EVERY_S)
        dead = await find_dead(mounts)
    message(dead.text)
    await release(dead.mount)


async def release(mount: str) -> None:
    """Has the kernel return an error to all processes that wait for a dead volume: otherwise they cannot be killed.

    Only root may do this. Without root, they wait until the file system gives up.
    """
    words = ["umount", "--force", "--no-canonicalize", mount]
    with contextlib.suppress(OSError):  # its exit code does not matter: it also fails for a mount that is in use
        await run(words if os.geteuid() == 0 else ["sudo", "-n", *words], RELEASE_S)
