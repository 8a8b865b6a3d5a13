"""Watches the volumes of a job on its node: a dead server must end the job, not stop it silently."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

from bootstrap.node.volumes import volume_probe

EVERY_S = 3.0
# With EVERY_S, and the time until the supervisor has ended the job, less than 15 s.
LIMIT_S = volume_probe.LIMIT_S
AFTER_FAILURE_S = 4.0
RELEASE_S = 10.0


class Dead(NamedTuple):
    """A volume that does not work on this node. text: which, whose it is, and why."""

    mount: str
    text: str


def find_dead(mounts: Sequence[str], limit_s: float = LIMIT_S) -> Optional[Dead]:
    """The first of these volumes that does not work on this node; None if all do.

    All are asked at once; takes at most about limit_s seconds, however dead a server is.
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
    """A volume that does not work. A file system of FUSE ends with its connection, and then nothing is mounted."""
    try:
        with open(volume_probe.NOTES) as stream:
            server = str(json.load(stream)[mount]["server"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"volume {mount}: {answer}"
    return f"volume {mount} of {server}: {'the connection is lost' if answer == volume_probe.NOT_MOUNTED else answer}"


def watch(mounts: Sequence[str], say: Callable[[str], None]) -> None:
    """In a thread: say which volume has died, once, and let nothing wait for it any more."""

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
    """Have the kernel answer all that wait for a dead volume with an error: otherwise they cannot even be killed.

    Only root may. Without it, they wait until the file system gives up.
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
