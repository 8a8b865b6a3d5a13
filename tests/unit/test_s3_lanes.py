"""Talks side by side in one thread: how many there are, how they end, and when threads are called for."""

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from train.s3 import lanes
from train.s3.lanes import Lanes, Talk, Task, Wait, finish

ALL = 10**9


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
        self._delay_s = delay_s

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
            timer = threading.Timer(self._delay_s, theirs.send, [b"%d" % number])
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


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def never_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this process waits for its turn on a busy machine, that looks like a hold-up."""
    monkeypatch.setattr(lanes, "HELD_UP", 2.0)


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
    peers, done, late = Peers(stack, delay_s=0.3), list[int](), list[int]()

    def patient(number: int) -> Talk[None]:
        try:
            yield from noting(peers.talk(number, timeout_s=0.5, answers=number % 5 != 0), done)
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


def test_what_holds_it_up_is_left_to_threads(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "HELD_UP", 0.5)
    peers, done = Peers(stack, delay_s=0), list[int]()

    def slow(number: int) -> Talk[None]:
        time.sleep(0.02)  # as a file does that is far away
        yield from noting(peers.talk(number), done)

    tasks = (Task(0, slow(number)) for number in range(200))
    Lanes(first=4, most=64, bytes_at_once=ALL).run(tasks)
    assert 0 < len(done) < 100
    assert next(tasks).size_bytes == 0
    # None is lost: what was begun is done.
    assert sorted(done) == list(range(len(done)))
    assert peers.now == 0


def test_waiting_for_answers_is_no_hold_up(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "HELD_UP", 0.9)
    peers, done = Peers(stack, delay_s=0.1), list[int]()
    Lanes(first=4, most=4, bytes_at_once=ALL).run(Task(0, noting(peers.talk(number), done)) for number in range(40))
    assert sorted(done) == list(range(40))


def test_what_the_first_one_does_alone_is_no_hold_up(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "HELD_UP", 0.9)
    peers, done = Peers(stack, delay_s=0.03), list[int]()

    def look_up_first(number: int) -> Talk[None]:
        if number == 0:
            time.sleep(1)  # as a look-up of a name may take
        yield from noting(peers.talk(number), done)

    Lanes(first=4, most=4, bytes_at_once=ALL).run(Task(0, look_up_first(number)) for number in range(40))
    assert sorted(done) == list(range(40))


def test_they_do_not_become_more_before_there_is_an_answer(stack: ExitStack) -> None:
    """Else all that a slow line cannot carry in a minute is sent at once, for nothing."""
    peers, done = Peers(stack, delay_s=0.3), list[int]()
    seen = []

    def look(number: int) -> Talk[None]:
        seen.append((len(done), peers.now))
        yield from noting(peers.talk(number), done)

    Lanes(first=4, most=64, bytes_at_once=ALL).run(Task(0, look(number)) for number in range(60))
    assert sorted(done) == list(range(60))
    assert max(now for answers, now in seen if not answers) == 3
    assert max(now for answers, now in seen if answers < 5) < 8
    assert peers.seen > 8


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
