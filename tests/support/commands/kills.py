"""Runs that are killed at random moments: it is counted which of them really were."""

import random
import signal
import subprocess
import time
from collections.abc import Iterator


class Kills:
    """A series of runs that goes on until so many of them were killed before they were done.

    wanted: how many kills. whole_s: how long a run takes, as far as is known: one that is done sooner tells better.
    """

    def __init__(self, wanted: int, *, seed: int, whole_s: float) -> None:
        self.killed = 0
        self.runs = 0
        self._wanted = wanted
        self._source = random.Random(seed)
        self._whole_s = whole_s

    def rounds(self) -> Iterator[int]:
        """Numbers from 1 on, until there were enough kills.

        Raises AssertionError where too many runs were done before they were killed.
        """
        number = 0
        while self.killed < self._wanted:
            assert self.runs <= 3 * self._wanted + 5, f"only {self.killed} of {self.runs} runs were killed"
            number += 1
            yield number

    def kill(self, process: "subprocess.Popen[bytes]", *, anew: bool = True) -> bool:
        """Kill it as a machine out of memory would; whether that was before it was done.

        anew: it does all of the work, and nothing that another has begun.
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
        elif anew:
            self._whole_s = min(self._whole_s, time.monotonic() - began)
        return code != 0
