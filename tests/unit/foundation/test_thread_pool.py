import threading
import time

import pytest

from foundation.thread_pool import Check, map_in_threads


def test_an_error_stops_the_work_of_a_pool_inside_and_is_the_one_that_is_raised() -> None:
    is_inside = threading.Event()

    def wait_inside(_item: int, _check: Check, outer: Check) -> None:
        is_inside.set()
        while True:
            outer()
            time.sleep(0.01)

    def work(item: str, check: Check) -> None:
        if item == "fails":
            assert is_inside.wait(10)
            raise OSError("the disk is full")
        map_in_threads(lambda number, stop: wait_inside(number, stop, check), [1, 2], threads=2)

    with pytest.raises(OSError, match="the disk is full"):
        map_in_threads(work, ["waits", "fails"], threads=2)
