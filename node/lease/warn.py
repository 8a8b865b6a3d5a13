"""Warns of an end: the users who are logged in, the logs of running jobs, and the recipients of [notify].

Python 3.6 and later, standard library only.
"""

import glob
import json
import os
import subprocess
import time
from typing import Any, Dict

from node.lease import activity, system, terms

EVENTS = "events"  # below RUN: one file for each warning
EVENT_NAMES = {"lifetime": "lease-ending", "idle": "idle-ending", "budget": "budget-reached"}


def render_warning(cluster: str, lease: terms.Lease, end: terms.End) -> str:
    """Returns the text of the warning."""
    what = {
        "lifetime": "its lifetime ends",
        "idle": "it has been idle",
        "budget": "its budget of ${:g} is nearly spent".format(lease.budget_usd or 0.0),
    }[end.why]
    ending = "stop" if lease.then == "stop" else "end"
    minutes = max(end.left_s, 0.0) / 60.0
    left = "{:.0f} minutes".format(minutes) if minutes >= 1.5 else "{:.0f} seconds".format(max(end.left_s, 0.0))
    remedy = {
        "lifetime": "cluster lease +4h",
        "idle": "cluster lease --idle 4h",
        "budget": "cluster lease --budget USD",
    }
    return "cluster {}: all nodes {} in {}, because {} ({} changes it)".format(
        cluster, ending, left, what, remedy[end.why]
    )


def warn_all(root: str, cluster: str, end: terms.End, text: str) -> None:
    """Warns the logged-in users and in the logs of running jobs, and writes the event for [notify]."""
    system.say(text)
    at = time.time()
    folder = os.path.join(root, system.RUN.lstrip("/"), EVENTS)
    event = {"event": EVENT_NAMES[end.why], "cluster": cluster, "at": at, "text": text}
    try:
        os.makedirs(folder, exist_ok=True)
        system.write_whole(os.path.join(folder, "{}-{:.0f}.json".format(event["event"], at)), json.dumps(event))
    except OSError as error:
        system.say("cannot write the event: {}".format(error))
    for terminal in glob.glob(os.path.join(glob.escape(root), "dev", "pts", "[0-9]*")):
        try:
            handle = os.open(terminal, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            continue  # it has been closed
        try:
            os.write(handle, "\r\n{}\r\n".format(text).encode("utf-8"))
        except OSError:
            continue  # the terminal has no reader
        finally:
            os.close(handle)
    for home, record in activity.find_running_jobs(root, list(activity.find_processes(root))):
        say_in_log(home, record, text)


def say_in_log(home: str, record: Dict[str, Any], text: str) -> None:
    """Writes a line to the log of a running job."""
    job, code, python = record.get("id"), record.get("code"), record.get("python")
    if not (isinstance(job, str) and isinstance(code, str) and isinstance(python, str)):
        return
    program = os.path.join(home, ".cluster", "tree", code, "train", "node")
    owner = os.stat(home)

    def become_owner() -> None:
        os.setgid(owner.st_gid)
        os.setuid(owner.st_uid)

    try:
        done = subprocess.run(
            [python, "-Es", program, "jobs", "say", job, text],
            env={"HOME": home, "PATH": system.PATH},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=become_owner,
            timeout=60,
            check=True,
        )
        if "error" in json.loads(done.stdout.decode("utf-8")):
            system.say("cannot warn job {}: {!r}".format(job, done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        system.say("cannot warn job {}: {}".format(job, error))
