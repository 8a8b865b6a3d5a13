"""Process 1 of the namespaces of an ordinary user's sandboxes (rootless.py): reaps, and ends after the last sandbox.

    /usr/bin/python3 -I -S -B holder.py MARK STATE_ROOT EXIT_FD

Imports only the standard library. EXIT_FD closes when this process ends, which notifies the reader of the other end.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

POLL_S = 0.5
MOST_QUIET = 2  # polls without another process
MOST_QUIET_AT_FIRST = 120  # on a busy machine, the command that has started this one takes seconds to arrive
# slirp4netns's resolver. A resolver on the machine's own loopback cannot be reached from here.
RESOLVER = "nameserver 10.0.2.3\n"


def main() -> None:
    """Runs as long as these namespaces have another process, such as a sandbox's daemon."""
    state_root = Path(sys.argv[2])
    subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
    if "nameserver 127." in Path("/etc/resolv.conf").read_text():
        resolver = state_root.with_name(f"{state_root.name}.resolv.conf")
        resolver.write_text(RESOLVER)
        subprocess.run(("mount", "--bind", str(resolver), os.path.realpath("/etc/resolv.conf")), check=True)
    os.write(1, b"+")
    os.close(1)
    quiet, most = 0, MOST_QUIET_AT_FIRST
    while quiet < most:
        time.sleep(POLL_S)
        _reap()
        others = [path for path in Path("/proc").iterdir() if path.name.isdigit() and path.name != "1"]
        quiet, most = (0, MOST_QUIET) if others else (quiet + 1, most)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    main()
