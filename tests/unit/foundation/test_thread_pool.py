"""Work in a thread beside the rest of a program."""

import threading

import pytest

from foundation.thread_pool import run_in_thread


def test_the_result_is_waited_for() -> None:
    go_on = threading.Event()
    future = run_in_thread(lambda: go_on.wait() and "done")
    assert not future.done()
    go_on.set()
    assert future.result(timeout=10) == "done"


def test_an_error_is_raised_where_the_result_is_asked_for() -> None:
    def fail() -> None:
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        run_in_thread(fail).result(timeout=10)


def test_nobody_waits_for_it_at_the_end_of_a_program() -> None:
    names: list[bool] = []
    run_in_thread(lambda: names.append(threading.current_thread().daemon)).result(timeout=10)
    assert names == [True]
