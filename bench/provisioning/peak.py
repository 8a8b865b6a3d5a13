"""`python -m bench.provisioning.peak FILE WORDS...`: `cluster WORDS...`, and into FILE the most memory it had, in MB.

VmHWM of /proc, and not getrusage's maximum: the kernel carries that over from the process that started this one.
"""

import os
import sys
from pathlib import Path


def peak_mb(pid: int | None = None) -> float:
    """The most memory that a process had at once (resident), in MB: this one, or another one that runs."""
    lines = Path(f"/proc/{pid or os.getpid()}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1.024 / 1000


def main() -> None:
    """Run the command in this process."""
    from cluster.main import run  # noqa: PLC0415 - not for those who only want peak_mb

    told = Path(sys.argv[1])
    sys.argv = ["cluster", *sys.argv[2:]]
    try:
        sys.exit(run())
    finally:
        told.write_text(f"{peak_mb():.1f}\n")


if __name__ == "__main__":
    main()
