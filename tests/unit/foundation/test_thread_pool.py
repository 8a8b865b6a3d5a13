"""Work in a background thread."""

import threading

import pytest

from foundation.thread_pool import run_in_thread


def test_the_future_waits_for_the_result() -> None:
    go_on = threading.Event()
    future = run_in_thread(lambda: go_on.wait() and "done")
    assert not future.done()
    go_on.set()
    assert future.result(timeout=10) == "done"


def test_the_future_raises_the_error() -> None:
    def fail() -> None:
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        run_in_thread(fail).result(timeout=10)


def test_the_thread_is_a_daemon() -> None:
    names: list[bool] = []
    run_in_thread(lambda: names.append(threading.current_thread().daemon)).result(timeout=10)
    assert names == [True]
