"""A job's log as lines for people."""

import pytest

from provision.errors import UsageError
from train.events import Event, Process, Role
from train.output import Selection, parse_since, render_line


def process(role: Role = "worker", *, rank: int | None = 0, host: str = "node-1") -> Process:
    return Process(number=0, role=role, host=host, rank=rank)


def line(text: str, of: Process, *, at: float = 100.0) -> Event:
    return Event(kind="line", at=at, process=of, text=text)


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (line("text", process()), "[worker 0 node-1] text"),
        (line("", process(rank=None)), "[worker ? node-1] "),
        (line("a", process("setup", rank=None)), "[setup node-1] a"),
        (Event(kind="say", at=1.0, text="ended"), "[supervisor node-0] ended"),
        (Event(kind="state", at=1.0, state="running"), None),
        (Event(kind="process", at=1.0, process=process()), None),
    ],
)
def test_a_line_says_who_printed_it(event: Event, shown: str | None) -> None:
    assert render_line(event) == shown


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        (Selection(), {"worker 0", "worker 1", "worker ?", "server 0", "setup", "say", "late"}),
        (Selection(ranks=frozenset({0})), {"worker 0", "server 0", "say", "late"}),
        (Selection(roles=frozenset({"worker"})), {"worker 0", "worker 1", "worker ?", "say", "late"}),
        (Selection(roles=frozenset({"worker"}), ranks=frozenset({1})), {"worker 1", "say"}),
        (Selection(roles=frozenset({"setup"})), {"setup", "say"}),
        (Selection(since=150.0), {"late"}),
    ],
)
def test_lines_are_selected_by_rank_role_and_time(selection: Selection, taken: set[str]) -> None:
    events = {
        "worker 0": line("", process()),
        "worker 1": line("", process(rank=1)),
        "worker ?": line("", process(rank=None)),
        "server 0": line("", process("server")),
        "setup": line("", process("setup", rank=None)),
        "say": Event(kind="say", at=100.0, text=""),
        "late": line("", process(), at=200.0),
    }
    assert {name for name, event in events.items() if selection.takes(event)} == taken


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", 910.0),
        ("1.5m", 910.0),
        ("2h", -6200.0),
        ("1d", -85400.0),
        ("1970-01-01T00:10+00:00", 600.0),
        ("1970-01-01T00:10:05Z", 605.0),
    ],
)
def test_since_is_a_length_of_time_or_a_moment(text: str, moment: float) -> None:
    assert parse_since(text, now=1000.0) == moment


@pytest.mark.parametrize("text", ["", "10", "-5m", "yesterday", "10 m m", "1e400d", "9" * 400 + "m"])
def test_any_other_since_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--since"):
        parse_since(text, now=1000.0)
