"""Gives one line of advice for each known mistake in a job's output, and for how its first process failed."""

import re
from collections.abc import Callable, Mapping

from node.reports import LONGEST
from train.follow.events import Event
from train.follow.known_mistakes import ENDINGS, MISTAKES, NO_MODULE, Mistake
from train.follow.tracebacks import without_rank

SIGNAL_CODES = 128  # the exit code for signal N is 128 + N


class Advisor:
    """Reads a job's events and gives each piece of advice once."""

    def __init__(
        self,
        advise_on_module: Callable[[str], str] | None = None,
        *,
        advise_on_path: Callable[[str], str | None] | None = None,
        endings: Mapping[int, str] = ENDINGS,
    ) -> None:
        """advise_on_module: returns the advice for a missing module; None: NO_MODULE's. endings: as ENDINGS.

        advise_on_path: returns the advice for a missing file, or None for the table's.
        """
        self._advise_on_module, self._advise_on_path = advise_on_module, advise_on_path
        self._given: set[str] = set()
        self._last_line = ""
        self._ending = False
        self._endings = endings

    def take(self, event: Event) -> str | None:
        """The advice for an event; None for most events."""
        if event.kind == "line" and event.text != self._last_line:
            self._last_line = event.text
            return self._read(without_rank(event.text[:LONGEST]))
        if event.state is not None and event.state in {"ending", "done", "failed", "stopped"}:
            # From now on the supervisor ends processes.
            self._ending = True
        elif event.state == "starting":  # another attempt
            self._ending = False
        if event.kind == "process" and event.process is not None and event.process.exit_code:
            return self._end(event.process.exit_code, event.process.signal)
        return None

    def _read(self, text: str) -> str | None:
        for mistake in MISTAKES:
            groups = find_groups(mistake, text) if mistake.needle in text else None
            if groups is None:
                continue
            if mistake.advice in self._given:  # by this line of another process, or by another entry
                return None
            self._given.add(mistake.advice)
            if mistake is NO_MODULE and self._advise_on_module is not None:
                return self._advise_on_module(groups["module"])
            special = self._advise_on_path(groups["path"]) if "path" in groups and self._advise_on_path else None
            return special or render_advice(mistake, groups)
        return None

    def _end(self, exit_code: int, signal: int | None) -> str | None:
        if self._ending:
            return None
        self._ending = True  # the first failure ends the job
        return self._endings.get(exit_code if signal is None else SIGNAL_CODES + signal)


def find_groups(mistake: Mistake, text: str) -> dict[str, str] | None:
    """The named groups in a line with the needle; None if the pattern does not match. Pure."""
    if mistake.pattern is None:
        return {}
    match = re.search(mistake.pattern, text)
    return match.groupdict() if match is not None else None


def render_advice(mistake: Mistake, groups: Mapping[str, str]) -> str:
    """The advice for a line with these groups. Pure."""
    advice = mistake.advice
    for name, value in groups.items():
        advice = advice.replace(f"{{{name}}}", value)
    return f"{advice} ({mistake.link})" if mistake.link else advice
