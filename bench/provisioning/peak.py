"""`python -m bench.provisioning.peak FILE WORDS...`: runs `cluster WORDS...` and writes its peak memory in MB to FILE.

Reads VmHWM from /proc. The maximum from getrusage includes that of the process that started this one.
"""

import os
import sys
from pathlib import Path


def peak_mb(pid: int | None = None) -> float:
    """Returns the peak resident memory in MB of a running process, by default this one."""
    lines = Path(f"/proc/{pid or os.getpid()}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1.024 / 1000


def main() -> None:
    """Runs the command in this process."""
    from cluster.main import run  # noqa: PLC0415 - importers of peak_mb do not need it

    told = Path(sys.argv[1])
    sys.argv = ["cluster", *sys.argv[2:]]
    try:
        sys.exit(run())
    finally:
        told.write_text(f"{peak_mb():.1f}\n")


if __name__ == "__main__":
    main()
