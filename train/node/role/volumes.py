"""Watches the volumes of a job on its node: a dead server must end the job, not stop it silently."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Optional

from bootstrap.node.volumes import volume_probe

NOTES = "/run/cluster-volumes/mounted.json"  # of bootstrap/node/volumes/mount_volumes.py
EVERY_S = 3.0
# With EVERY_S, and the time until the supervisor has ended the job, less than 15 s.
LIMIT_S = volume_probe.LIMIT_S
AFTER_FAILURE_S = 4.0


def find_dead(mounts: Sequence[str], limit_s: float = LIMIT_S) -> Optional[str]:
    """Which of these volumes does not work on this node, whose it is, and why; None if all do.

    All are asked at once; takes at most about limit_s seconds, however dead a server is.
    """
    questions = {mount: volume_probe.Question(mount) for mount in mounts}
    while questions:
        for mount, question in tuple(questions.items()):
            answer = question.answer(limit_s)
            if answer:
                return describe(mount, answer)
            if answer is not None:
                del questions[mount]
        if questions:
            time.sleep(volume_probe.LOOK_EVERY_S)
    return None


def describe(mount: str, answer: str) -> str:
    """A volume that does not work. A file system of FUSE ends with its connection, and then nothing is mounted."""
    try:
        with open(NOTES) as stream:
            server = str(json.load(stream)[mount]["server"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"volume {mount}: {answer}"
    return f"volume {mount} of {server}: {'the connection is lost' if answer == volume_probe.NOT_MOUNTED else answer}"


def watch(mounts: Sequence[str], say: Callable[[str], None]) -> None:
    """In a thread: say which volume has died, once."""

    def look() -> None:
        dead = None
        while dead is None:
            time.sleep(EVERY_S)
            dead = find_dead(mounts)
        say(dead)

    if mounts:
        threading.Thread(target=look, daemon=True).start()
