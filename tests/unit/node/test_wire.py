"""Lines, boxes of output, and the pace at which output is forwarded."""

import time

import pytest

from node import wire


def test_endless_lines_do_not_fill_the_memory() -> None:
    buffer = wire.LineBuffer(limit=10)
    assert buffer.feed(b"x" * 25) == [b"x" * 10, b"x" * 10]
    assert buffer.flush() == [b"x" * 5]


@pytest.mark.parametrize(
    ("came_at", "rests_s"),
    [
        ([5.0, 6.0, 7.0], [0.0, 0.0, 0.0]),  # rare output is forwarded at once
        ([5.0, 5.1, 5.2, 5.3], [0.0, 0.05, 0.1, 0.15]),  # steady output is collected
        ([5.0, 5.1, 5.2, 6.3], [0.0, 0.05, 0.1, 0.0]),
    ],
)
def test_streaming_output_is_collected(
    came_at: list[float], rests_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace, rests = wire.Pace(), []
    assert not pace.delay_s
    for now in came_at:  # noqa: B007 - the clock
        pace.note()
        rests.append(pace.delay_s)
    assert rests == pytest.approx(rests_s)
    now += wire.LONGEST_DELAY_S
    assert not pace.delay_s
