"""Kills runs at random moments, and counts those that were killed before they ended."""

import random
import signal
import subprocess
import time
from collections.abc import Iterator


class Kills:
    """A series of runs that ends when enough of them were killed before they were done.

    wanted: how many kills. whole_s: an estimate of how long a run takes; a run that ends sooner corrects it.
    """

    def __init__(self, wanted: int, *, seed: int, whole_s: float) -> None:
        self.killed = 0
        self.runs = 0
        self._wanted = wanted
        self._source = random.Random(seed)
        self._whole_s = whole_s

    def rounds(self) -> Iterator[int]:
        """Yields 1, 2, 3 and so on, until there have been enough kills.

        Raises AssertionError if too many runs ended before they were killed.
        """
        number = 0
        while self.killed < self._wanted:
            assert self.runs <= 3 * self._wanted + 5, f"only {self.killed} of {self.runs} runs were killed"
            number += 1
            yield number

    def kill(self, process: "subprocess.Popen[bytes]", *, from_start: bool = True) -> bool:
        """Kills the process at a random moment, as the kernel does when out of memory.

        Returns whether it was still running. from_start: it does all of the work, and does not continue another run.
        """
        began = time.monotonic()
        after_s = self._source.uniform(0.2, 1.0) * self._whole_s
        try:
            process.wait(timeout=after_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        code = process.wait()
        assert code in {0, -signal.SIGKILL}
        self.runs += 1
        if code:
            self.killed += 1
        elif from_start:
            self._whole_s = min(self._whole_s, time.monotonic() - began)
        return code != 0
