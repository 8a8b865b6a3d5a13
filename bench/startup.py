"""The time that the command line needs to start."""

import subprocess
import sys

from bench.support.command import CLUSTER
from bench.support.rounds import interleave, render_timings


def run() -> str:
    """Compares `cluster --help` with a Python that does nothing. Returns the section of RESULTS.md."""

    def command(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True)

    timings = interleave(
        {
            "cluster --help": lambda: command(CLUSTER, "--help"),
            "cluster train --help": lambda: command(CLUSTER, "train", "--help"),
            "python -c pass": lambda: command(sys.executable, "-c", "pass"),
        },
        rounds=11,
    )
    commands = {"all": "python -m bench startup"}
    return render_timings("Start of the command line", timings, commands=commands)
