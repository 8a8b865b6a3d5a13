"""The running time of a node: a table, and random histories."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.model import InstanceState, Node
from provision.pause import ran_tag, running_s
from provision_world import make_node

LAUNCH = 1_900_000_000
HOUR = 3600


def at(second: float) -> datetime:
    """Seconds after the launch."""
    return datetime.fromtimestamp(LAUNCH, UTC) + timedelta(seconds=second)


def node(state: InstanceState, *, started: float = 0, ran: str | None = None) -> Node:
    return make_node(0, state=state, launched_at=at(0), started_at=at(started), ran=ran)


def tag(before: int, start: int, stop: int) -> str:
    return f"{before},{LAUNCH + start},{LAUNCH + stop}"


@pytest.mark.parametrize(
    ("what", "given_node", "wanted_s"),
    [
        ("never stopped", node("running"), 10 * HOUR),
        ("about to run", node("pending"), 10 * HOUR),
        ("stopped", node("stopped", ran=tag(0, 0, HOUR)), HOUR),
        ("started again", node("running", started=8 * HOUR, ran=tag(0, 0, HOUR)), 3 * HOUR),
        ("stopped twice", node("stopped", started=8 * HOUR, ran=tag(HOUR, 8 * HOUR, 9 * HOUR)), 2 * HOUR),
        ("the stop was interrupted", node("running", ran=tag(0, 0, HOUR)), 10 * HOUR),
        ("stopped by something else", node("stopped", started=8 * HOUR, ran=tag(0, 0, HOUR)), 3 * HOUR),
        ("stopped without a tag", node("stopped"), 10 * HOUR),
        ("another tag", node("running", started=9 * HOUR, ran="a lot"), 10 * HOUR),
        ("negative", node("stopped", ran=f"-5,{LAUNCH},{LAUNCH + 9}"), 10 * HOUR),
        ("more before than since the launch", node("running", started=HOUR, ran=tag(2 * HOUR, HOUR, HOUR)), 10 * HOUR),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_running_time_ten_hours_after_the_launch(what: str, given_node: Node, wanted_s: float) -> None:
    assert running_s(given_node, now=at(10 * HOUR)) == wanted_s


@pytest.mark.parametrize(
    ("given_node", "wanted"),
    [
        (node("running"), tag(0, 0, 10 * HOUR)),
        (node("running", started=8 * HOUR, ran=tag(0, 0, HOUR)), tag(HOUR, 8 * HOUR, 10 * HOUR)),
        (node("running", started=8 * HOUR, ran=tag(HOUR, 2 * HOUR, 3 * HOUR)), tag(2 * HOUR, 8 * HOUR, 10 * HOUR)),
        # An earlier stop was interrupted: only the end moves.
        # Started again by others: all time since the launch counts.
        (node("running", started=8 * HOUR), tag(8 * HOUR, 8 * HOUR, 10 * HOUR)),
    ],
)
def test_the_tag_that_stop_writes(given_node: Node, wanted: str) -> None:
    assert ran_tag(given_node, now=at(10 * HOUR)) == wanted


phases = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 3)), min_size=1, max_size=6)


@given(phases=phases)
def test_the_periods_of_a_random_history_add_up(phases: list[tuple[int, int, int]]) -> None:
    """Each phase: seconds running, seconds stopped, and the number of interrupted stops before the stop."""
    now, ran_s = 0, 0
    life = node("running")
    for runs_s, rests_s, interrupted in phases:
        for attempt in range(interrupted + 1):
            tried_at = now + runs_s * (attempt + 1) // (interrupted + 1)
            life = replace(life, ran=ran_tag(life, now=at(tried_at)))
            assert running_s(life, now=at(tried_at)) == ran_s + tried_at - now
        now, ran_s = now + runs_s, ran_s + runs_s
        life = replace(life, state="stopped")
        assert running_s(life, now=at(now + rests_s)) == ran_s
        now += rests_s + 1  # EC2's times are whole seconds: a period that begins in the same second is the same period
        life = replace(life, state="running", started_at=at(now))
        assert running_s(life, now=at(now)) == ran_s
