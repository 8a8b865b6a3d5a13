"""Runs MXNet's own tools/launch.py, unchanged, from the installed wheel.

    launch.py PRIVATE_ADDRESS ARGUMENTS...

What it would get wrong is put right around it: the scheduler listens on the head's private address instead of what
the host's name happens to resolve to. (_cluster_compat has put Thread.isAlive back, which it calls.)
"""

import os
import runpy
import sys
import sysconfig


def main():
    address = sys.argv[1]
    import dmlc_tracker.tracker

    dmlc_tracker.tracker.get_host_ip = lambda _=None: address
    path = os.path.join(sysconfig.get_path("purelib"), "mxnet", "tools", "launch.py")
    sys.argv = [path] + sys.argv[2:]
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    main()
