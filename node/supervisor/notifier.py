"""Sends a job's events to [notify] webhook and command, each by a child process (node/setup/notify.py)."""

import asyncio
import json
import time
from typing import Any

from msgspec import to_builtins

from node.children import run
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
TIMEOUT_S = 100.0  # for three tries of the webhook, and then the command, which has 60 s


class Notifier:
    """Sends the events of one job. notify: None to send no events. The job waits for it only at its end."""

    def __init__(self, notify: Notify | None, record: Record) -> None:
        self._notify, self._record = notify, record
        self._sending: list[asyncio.Task[list[str]]] = []

    def send(self, event: str, text: str, **more: Any) -> None:
        """Sends an event. text: a sentence for people to read."""
        if self._notify is None or not (self._notify.webhook or self._notify.command):
            return
        record = self._record
        fields = {name: getattr(record, name) for name in OF_RECORD}
        fields |= {"error": record.error and record.error[:LONGEST_ERROR], "output_url": record.spec.output_url}
        document = {"event": event, "at": round(time.time(), 3), "text": text, "job": fields, **more}
        request = json.dumps({"settings": to_builtins(self._notify), "event": document}).encode() + b"\n"
        self._sending.append(asyncio.ensure_future(_send(request)))

    async def finish(self) -> list[str]:
        """Waits until all events are sent, or the time for them is over. Returns the errors."""
        errors = [error for found in await asyncio.gather(*self._sending) for error in found]
        return [f"[notify] {error}" for error in dict.fromkeys(errors)]


async def _send(request: bytes) -> list[str]:
    """Sends an event. Returns the errors."""
    try:
        # The session of its own lets it outlive the supervisor.
        ended = await run(program_words("notify"), TIMEOUT_S, given=request, start_new_session=True)
    except OSError:
        return []  # the node has no process left; the job matters more
    try:
        return [str(error) for error in json.loads(ended.stdout)["errors"]]
    except (ValueError, KeyError, TypeError):
        return [f"not sent within {TIMEOUT_S:g} s" if ended.code is None else "it ended without an answer"]
