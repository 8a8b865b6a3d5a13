"""Equal tracebacks of several processes are shown once."""

from job_events import line, result, worker
from train.follow.events import Event
from train.follow.tracebacks import BEGIN, Tracebacks

FRAMES = ('  File "own.py", line 2, in <module>', "    open('x')")
ERROR = "FileNotFoundError: x"
WHOLE = (BEGIN, *FRAMES, ERROR)


def show(*events: Event, tracebacks: Tracebacks | None = None) -> list[tuple[int, str]]:
    tracebacks = tracebacks or Tracebacks()
    shown = [one for event in events for one in tracebacks.take(event)]
    return [(one.process.number, one.text) for one in shown if one.kind == "line" and one.process is not None]


def of(rank: int, *texts: str, at: float = 101.0) -> list[Event]:
    return [line(text, rank, at=at) for text in texts]


def alternating(*sources: list[Event]) -> list[Event]:
    return [event for group in zip(*sources, strict=True) for event in group]


def test_equal_tracebacks_are_shown_once() -> None:
    tracebacks = Tracebacks()
    events = alternating(*(of(rank, "starts", *WHOLE) for rank in range(6)))
    shown = show(*events, result(), tracebacks=tracebacks)
    assert shown == [*((rank, "starts") for rank in range(6)), *((0, text) for text in WHOLE)]
    (message,) = tracebacks.render()
    assert message == (
        "the same traceback on 6 processes (worker 0 node-0, worker 1 node-1, worker 2 node-2, worker 3 node-3 "
        f"and 2 more): {ERROR}"
    )


def test_other_tracebacks_are_shown_whole() -> None:
    """Also the same one, again, of one process; and none is torn apart by another process."""
    other = (BEGIN, *FRAMES, "ValueError: 0x7f")
    tracebacks = Tracebacks()
    shown = show(*alternating(of(0, *WHOLE), of(1, *other)), *of(0, *WHOLE), tracebacks=tracebacks)
    assert shown == [*((0, text) for text in WHOLE), *((1, text) for text in other), *((0, text) for text in WHOLE)]
    assert not list(tracebacks.render())


def test_addresses_and_ranks_make_no_difference() -> None:
    def ranked(rank: int) -> list[Event]:
        return of(rank, *(f"[rank{rank}]: {text}" for text in (BEGIN, *FRAMES, f"ValueError: <x at 0x7f{rank}>")))

    assert len(show(*ranked(0), *ranked(1))) == len(WHOLE)


def test_a_traceback_without_an_end_is_shown() -> None:
    ended = Event(kind="process", at=102.0, process=worker(0, exit_code=1))
    assert show(*of(0, BEGIN, FRAMES[0]), ended) == [(0, BEGIN), (0, FRAMES[0])]
    assert show(*of(0, BEGIN, FRAMES[0]), result()) == [(0, BEGIN), (0, FRAMES[0])]
    tracebacks = Tracebacks()
    assert show(*of(0, BEGIN), tracebacks=tracebacks) == []
    assert [event.text for event in tracebacks.flush()] == [BEGIN]
