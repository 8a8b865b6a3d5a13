"""Talks side by side in one thread: how many there are, how they end, and when threads are called for."""

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from types import SimpleNamespace

import pytest

from train.s3 import lanes
from train.s3.lanes import Lanes, Talk, Task, Wait, finish

ALL = 10**9
HELD_UP = lanes.HELD_UP


class Peers:
    """The other sides of talks, each of which gets an answer after a while; seen: the most there were at once."""

    def __init__(self, stack: ExitStack, *, delay_s: float) -> None:
        self.now = 0
        self.seen = 0
        self.held = 0
        self.most_held = 0  # by one that is alone
        self.most_held_together = 0
        self.closed = 0
        self._stack = stack
        self.delay_s = delay_s

    def talk(self, number: int, *, size: int = 0, timeout_s: float = 60, answers: bool = True) -> Talk[int]:
        ours, theirs = socket.socketpair()
        self._stack.enter_context(ours)
        self._stack.enter_context(theirs)
        self.now += 1
        self.held += size
        self.seen = max(self.seen, self.now)
        if self.now > 1:
            self.most_held_together = max(self.most_held_together, self.held)
        else:
            self.most_held = max(self.most_held, self.held)
        if answers:
            timer = threading.Timer(self.delay_s, theirs.send, [b"%d" % number])
            timer.start()
            self._stack.callback(timer.join)
        try:
            yield Wait(ours, select.POLLIN, timeout_s)
            answer = ours.recv(100)
        finally:
            self.now -= 1
            self.held -= size
            self.closed += 1
        return int(answer)


class Clock:
    """The time, and this process's CPU time, which pass where a test says so and nowhere else.

    after_poll: called after every look for answers.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.cpu_s = 0.0
        self.after_poll: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.cpu_s

    def go_on(self, seconds: float) -> None:
        self.now += seconds


class Poll:
    """A select.poll that tells the clock."""

    def __init__(self, clock: Clock) -> None:
        poll = select.poll()
        self.register = poll.register
        self.unregister = poll.unregister
        self._look = poll.poll
        self._clock = clock

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        found = self._look(timeout_ms)
        self._clock.after_poll()
        return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def never_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this process waits for its turn on a busy machine, that looks like a hold-up."""
    monkeypatch.setattr(lanes, "HELD_UP", 2.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, never_held_up: None) -> Clock:
    """The lanes', which know by it alone whether they are held up. never_held_up: undone here, so it comes before."""
    clock = Clock()
    monkeypatch.setattr(lanes, "time", clock)
    monkeypatch.setattr(lanes, "select", SimpleNamespace(poll=partial(Poll, clock)))
    monkeypatch.setattr(lanes, "HELD_UP", HELD_UP)
    return clock


def noting(talk: Talk[int], done: list[int]) -> Talk[None]:
    done.append((yield from talk))


def test_one(stack: ExitStack) -> None:
    assert finish(Peers(stack, delay_s=0.01).talk(7)) == 7


def test_one_whose_other_side_is_silent(stack: ExitStack) -> None:
    peers = Peers(stack, delay_s=0)
    with pytest.raises(TimeoutError):
        finish(peers.talk(7, timeout_s=0.01, answers=False))
    assert peers.closed == 1


@pytest.mark.parametrize(("most", "seen"), [(16, range(5, 17)), (4, range(4, 5))])
def test_they_become_more_while_they_wait(stack: ExitStack, most: int, seen: range) -> None:
    peers, done = Peers(stack, delay_s=0.02), list[int]()
    tasks = (Task(0, noting(peers.talk(number), done)) for number in range(60))
    Lanes(first=4, most=most, bytes_at_once=ALL).run(tasks)
    assert sorted(done) == list(range(60))
    assert peers.seen in seen


def test_they_stay_few_where_the_process_is_busy(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "BUSY", -1.0)  # whatever takes more than this of a core is busy
    peers, done = Peers(stack, delay_s=0.02), list[int]()
    Lanes(first=4, most=16, bytes_at_once=ALL).run(Task(0, noting(peers.talk(number), done)) for number in range(30))
    assert sorted(done) == list(range(30))
    assert peers.seen == 4


def test_together_they_hold_so_much_or_one_is_alone(stack: ExitStack) -> None:
    peers, done = Peers(stack, delay_s=0.002), list[int]()
    sizes = [10, 60, 50, 100, 1, 1, 250, 1, 99, 50, 50, 50]
    tasks = (Task(size, noting(peers.talk(number, size=size), done)) for number, size in enumerate(sizes))
    Lanes(first=4, most=4, bytes_at_once=100).run(tasks)
    assert sorted(done) == list(range(len(sizes)))
    assert peers.most_held == 250
    assert 50 < peers.most_held_together <= 100
    assert peers.held == 0


def test_a_silent_one_does_not_keep_the_others(stack: ExitStack) -> None:
    peers, done, late = Peers(stack, delay_s=0.1), list[int](), list[int]()

    def patient(number: int) -> Talk[None]:
        answers = number % 5 != 0
        try:
            yield from noting(peers.talk(number, timeout_s=60 if answers else 0.5, answers=answers), done)
        except TimeoutError:
            late.append(number)

    Lanes(first=4, most=4, bytes_at_once=ALL).run(Task(0, patient(number)) for number in range(20))
    assert sorted(late) == [0, 5, 10, 15]
    assert sorted(done) == [number for number in range(20) if number % 5]


def test_one_that_fails_ends_all(stack: ExitStack) -> None:
    peers = Peers(stack, delay_s=0.01)

    def fail() -> Talk[None]:
        yield from peers.talk(0)
        raise ZeroDivisionError

    tasks = iter([Task(0, noting(peers.talk(1, answers=False), [])), Task(0, fail())])
    with pytest.raises(ZeroDivisionError):
        Lanes(first=4, most=4, bytes_at_once=ALL).run(tasks)
    assert (peers.now, peers.closed) == (0, 2)


def test_who_has_answered_is_not_late(stack: ExitStack, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long this process had to wait for its turn after it had looked."""
    monkeypatch.setattr(lanes, "_LOOK_S", 0.001)
    pairs = [socket.socketpair() for _ in range(2)]
    for connection in (connection for pair in pairs for connection in pair):
        stack.enter_context(connection)
    done, late = list[int](), list[int]()

    def answer_and_stall() -> None:
        clock.after_poll = lambda: None
        pairs[0][1].send(b"yes")
        clock.go_on(100)

    def ask(number: int) -> Talk[None]:
        try:
            yield Wait(pairs[number][0], select.POLLIN, 60)
            done.append(number)
        except TimeoutError:
            late.append(number)

    clock.after_poll = answer_and_stall
    Lanes(first=2, most=2, bytes_at_once=ALL).run(Task(0, ask(number)) for number in range(2))
    assert (done, late) == ([0], [1])


def test_what_holds_it_up_is_left_to_threads(stack: ExitStack, clock: Clock) -> None:
    peers, done = Peers(stack, delay_s=0), list[int]()

    def slow(number: int) -> Talk[None]:
        clock.go_on(0.02)  # as a file does that is far away
        yield from noting(peers.talk(number), done)

    tasks = (Task(0, slow(number)) for number in range(200))
    Lanes(first=4, most=64, bytes_at_once=ALL).run(tasks)
    assert 0 < len(done) < 100
    assert next(tasks).size_bytes == 0
    # None is lost: what was begun is done.
    assert sorted(done) == list(range(len(done)))
    assert peers.now == 0


def test_waiting_for_answers_is_no_hold_up(stack: ExitStack, clock: Clock) -> None:
    clock.after_poll = partial(clock.go_on, 0.1)
    peers, done = Peers(stack, delay_s=0), list[int]()
    Lanes(first=4, most=4, bytes_at_once=ALL).run(Task(0, noting(peers.talk(number), done)) for number in range(40))
    assert sorted(done) == list(range(40))


def test_work_is_no_hold_up(stack: ExitStack, clock: Clock) -> None:
    peers, done = Peers(stack, delay_s=0), list[int]()

    def work(number: int) -> Talk[None]:
        clock.go_on(0.1)
        clock.cpu_s += 0.1
        yield from noting(peers.talk(number), done)

    Lanes(first=4, most=4, bytes_at_once=ALL).run(Task(0, work(number)) for number in range(40))
    assert sorted(done) == list(range(40))


def test_what_the_first_one_does_alone_is_no_hold_up(stack: ExitStack, clock: Clock) -> None:
    clock.after_poll = partial(clock.go_on, 0.1)
    peers, done = Peers(stack, delay_s=0), list[int]()

    def look_up_first(number: int) -> Talk[None]:
        if number == 0:
            clock.go_on(1)  # as a look-up of a name may take
        yield from noting(peers.talk(number), done)

    Lanes(first=4, most=4, bytes_at_once=ALL).run(Task(0, look_up_first(number)) for number in range(40))
    assert sorted(done) == list(range(40))


def test_they_do_not_become_more_before_there_is_an_answer(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all that a slow line cannot carry in a minute is sent at once, for nothing."""
    monkeypatch.setattr(lanes, "_LOOK_S", 0.01)  # many looks for each answer
    first = 4
    peers, done = Peers(stack, delay_s=0), list[int]()
    seen = []

    def look(number: int) -> Talk[None]:
        seen.append((len(done), peers.now))
        peers.delay_s = 0.3 if number else 0.1  # one answer comes alone
        yield from noting(peers.talk(number), done)

    Lanes(first=first, most=64, bytes_at_once=ALL).run(Task(0, look(number)) for number in range(60))
    assert sorted(done) == list(range(60))
    # Twice as many for an answer, however these are spread.
    assert [(answers, now) for answers, now in seen if now >= first * 2**answers] == []
    assert peers.seen > 2 * first


def test_they_do_not_become_more_where_answers_take_long(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_SOON_S", 0.01)
    peers, done = Peers(stack, delay_s=0.02), list[int]()
    Lanes(first=4, most=16, bytes_at_once=ALL).run(Task(0, noting(peers.talk(number), done)) for number in range(40))
    assert sorted(done) == list(range(40))
    assert peers.seen == 4


def test_a_time_out_is_no_answer(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_LOOK_S", 0.05)
    peers = Peers(stack, delay_s=0)

    def give_up(number: int) -> Talk[None]:
        with suppress(TimeoutError):
            yield from peers.talk(number, timeout_s=0.1, answers=False)

    Lanes(first=4, most=16, bytes_at_once=ALL).run(Task(0, give_up(number)) for number in range(20))
    assert (peers.seen, peers.closed) == (4, 20)
