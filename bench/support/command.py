"""The paths of the checkout and of its command, and commands that must succeed."""

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CLUSTER = str(Path(sys.executable).parent / "cluster")


def must_run(words: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Runs a command, and returns its output. Ends the benchmark if it fails."""
    done = subprocess.run(
        words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{shlex.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
