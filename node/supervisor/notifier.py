"""Sends a job's events to [notify] webhook and command, each by a child process (node/setup/notify.py)."""

import json
import select
import subprocess
import time
from typing import Any

from msgspec import to_builtins

from node.programs import program_words
from node.protocol import Notify, Record

OF_RECORD = (
    "id",
    "name",
    "state",
    "exit_code",
    "error",
    "submitted_at",
    "started_at",
    "ended_at",
    "cost_usd",
)
LONGEST_ERROR = 4000


class Notifier:
    """Sends the events of one job. notify: None to send no events. The job waits for it only at its end."""

    def __init__(self, notify: Notify | None, record: Record) -> None:
        self._notify, self._record = notify, record
        self._children: list[subprocess.Popen[bytes]] = []

    def send(self, event: str, text: str, **more: Any) -> None:
        """Sends an event. text: a sentence for people to read."""
        if self._notify is None or not (self._notify.webhook or self._notify.command):
            return
        record = self._record
        fields = {name: getattr(record, name) for name in OF_RECORD}
        fields |= {"error": record.error and record.error[:LONGEST_ERROR], "output_url": record.spec.output_url}
        told = {"event": event, "at": round(time.time(), 3), "text": text, "job": fields, **more}
        try:
            child = subprocess.Popen(
                program_words("notify"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # it may outlive the supervisor
            )
        except OSError:
            return  # the node has no process left; the job matters more
        self._children.append(child)
        assert child.stdin is not None
        try:
            # This is less than a pipe holds, so the write never waits.
            child.stdin.write(json.dumps({"settings": to_builtins(self._notify), "event": told}).encode() + b"\n")
            child.stdin.close()
        except OSError:
            pass  # it has ended, which `finish` reports

    def finish(self, timeout_s: float) -> list[str]:
        """Waits until all events are sent, at most timeout_s seconds. Returns the errors."""
        give_up_at = time.monotonic() + timeout_s
        errors: list[str] = []
        for child in self._children:
            assert child.stdout is not None
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, give_up_at - time.monotonic()))
            answer = child.stdout.readline() if ready else b""
            try:
                errors += [str(error) for error in json.loads(answer)["errors"]]
            except (ValueError, KeyError, TypeError):
                errors.append("it ended without an answer" if ready else f"not sent within {timeout_s:g} s")
        self._children = []
        return [f"[notify] {error}" for error in dict.fromkeys(errors)]
