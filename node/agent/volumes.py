"""Watches the volumes of a job on its node: a dead server must end the job, not stall it silently."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from node.setup.volumes import volume_probe

EVERY_S = 3.0
# With EVERY_S, and the time until the supervisor has ended the job, less than 15 s.
LIMIT_S = volume_probe.LIMIT_S
AFTER_FAILURE_S = 4.0
RELEASE_S = 10.0


class Dead(NamedTuple):
    """A volume that does not work on this node. text: the volume, its server, and the reason."""

    mount: str
    text: str


def find_dead(mounts: Sequence[str], limit_s: float = LIMIT_S) -> Dead | None:
    """Returns the first of these volumes that does not work on this node; None if all work.

    All are checked at once, in at most about limit_s seconds, even if a server does not respond at all.
    """
    questions = {mount: volume_probe.Question(mount) for mount in mounts}
    while questions:
        for mount, question in tuple(questions.items()):
            answer = question.answer(limit_s)
            if answer:
                return Dead(mount, describe(mount, answer))
            if answer is not None:
                del questions[mount]
        if questions:
            time.sleep(volume_probe.LOOK_EVERY_S)
    return None


def describe(mount: str, answer: str) -> str:
    """Describes a volume that does not work. A FUSE file system ends with its connection: then nothing is mounted."""
    try:
        with open(volume_probe.NOTES) as stream:
            server = str(json.load(stream)[mount]["server"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"volume {mount}: {answer}"
    return f"volume {mount} of {server}: {'the connection is lost' if answer == volume_probe.NOT_MOUNTED else answer}"


def watch(mounts: Sequence[str], say: Callable[[str], None]) -> None:
    """Watches volumes in a thread. Once one does not work, reports it and releases the processes that wait for it."""

    def look() -> None:
        dead = None
        while dead is None:
            time.sleep(EVERY_S)
            dead = find_dead(mounts)
        say(dead.text)
        release(dead.mount)

    if mounts:
        threading.Thread(target=look, daemon=True).start()


def release(mount: str) -> None:
    """Has the kernel return an error to all processes that wait for a dead volume: otherwise they cannot be killed.

    Only root may do this. Without root, they wait until the file system gives up.
    """
    words = ["umount", "--force", "--no-canonicalize", mount]
    try:
        child = subprocess.Popen(
            words if os.geteuid() == 0 else ["sudo", "-n", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        child.wait(RELEASE_S)  # its exit code does not matter: it also fails for a mount that is in use
    except (OSError, subprocess.TimeoutExpired):
        return
