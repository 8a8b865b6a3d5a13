"""One line of advice for each mistake that a job's output shows to be made; the table is train/known_mistakes.py."""

import re

from train.events import Event
from train.known_mistakes import ENDINGS, MISTAKES
from train.mistake import Ending, Mistake
from train.report import LONGEST

SIGNAL_CODES = 128  # a process that signal N ended has the exit code 128 + N


class Advisor:
    """Reads a job's events and gives each advice once."""

    def __init__(self) -> None:
        self._left = list(MISTAKES)
        self._last_line = ""
        self._ending = False

    def take(self, event: Event) -> str | None:
        """The advice that an event gives occasion for; None for nearly all of them."""
        if event.kind == "line":
            return self._read(event.text)
        if event.state is not None and event.state in {"ending", "done", "failed", "stopped"}:
            # Whatever ends from now on was ended.
            self._ending = True
        if event.kind == "process" and event.process is not None and event.process.exit_code:
            return self._end(event.process.exit_code, event.process.signal)
        return None

    def _read(self, text: str) -> str | None:
        if text == self._last_line:
            return None
        self._last_line = text
        text = text[:LONGEST]
        for mistake in self._left:
            if mistake.needle in text:
                advice = render_advice(mistake, text)
                if advice is not None:
                    # The same advice may belong to several signs of one mistake.
                    self._left = [other for other in self._left if other.advice != mistake.advice]
                    return advice
        return None

    def _end(self, exit_code: int, signal: int | None) -> str | None:
        if self._ending:
            return None
        self._ending = True  # the first one to fail ends the job
        ending = find_ending(exit_code if signal is None else SIGNAL_CODES + signal)
        return ending.advice if ending is not None else None


def render_advice(mistake: Mistake, text: str) -> str | None:
    """The advice for a line in which the needle stands; None when the line is another matter after all. Pure."""
    groups: dict[str, str] = {}
    if mistake.pattern is not None:
        match = re.search(mistake.pattern, text)
        if match is None:
            return None
        groups = match.groupdict()
    advice = mistake.advice
    for name, value in groups.items():
        advice = advice.replace(f"{{{name}}}", value)
    return f"{advice} ({mistake.link})" if mistake.link else advice


def find_ending(code: int) -> Ending | None:
    """What is known about an exit code. Pure."""
    return next((ending for ending in ENDINGS if code in ending.codes), None)
