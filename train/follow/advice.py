"""Gives one line of advice for each known mistake in a job's output."""

from collections.abc import Callable

from node.causes.cause import LONGEST
from node.causes.mistakes import find_mistake, without_rank
from train.follow.events import Event


class Advisor:
    """Reads a job's events and gives each piece of advice once."""

    def __init__(self, advise_on_module: Callable[[str], str] | None = None) -> None:
        """advise_on_module: returns the advice for a missing module; None: that of mistakes.ini."""
        self._advise_on_module = advise_on_module
        self._given: set[str] = set()
        self.instead: dict[str, str] = {}  # the advice of this machine, by the cause as the head words it
        self._last_line = ""

    def take(self, event: Event) -> str | None:
        """The advice for an event; None for most events."""
        if event.kind != "line" or event.text == self._last_line:
            return None
        self._last_line = event.text
        found = find_mistake(without_rank(event.text[:LONGEST]))
        if found is None or found[0].advice in self._given:  # by this line of another process, or by another entry
            return None
        mistake, groups = found
        self._given.add(mistake.advice)
        advice = mistake.advice.format(**groups)
        if "module" in groups and self._advise_on_module is not None:
            self.instead[advice] = self._advise_on_module(groups["module"])
        return self.instead.get(advice, advice)
