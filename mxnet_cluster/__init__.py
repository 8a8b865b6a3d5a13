"""The modules that users import, and the command `cluster`, kept separate from the user's own modules.

    from mxnet_cluster.records import iterate_records

The other packages of this project have common names, such as `train`, which a user's program may also use. So the
modules in this package do not import them.

The user's PYTHONPATH comes before installed packages, so a train.py, sandbox.py or cluster/ in it would replace this
project's packages. Therefore `main`, in a package with a unique name, removes PYTHONPATH first, also for the processes
that the command starts on this machine.
"""

import gc
import os
import sys


def main() -> None:
    """Runs the command, and exits with its exit code."""
    try:
        os.getcwd()
    except FileNotFoundError:
        sys.stderr.write("error: the current folder has been deleted\n  try: cd to another folder\n")
        sys.exit(1)
    given = {os.path.abspath(path) for path in os.environ.pop("PYTHONPATH", "").split(os.pathsep)}
    if os.geteuid() == 0 and "SUDO_UID" in os.environ:
        sys.dont_write_bytecode = True  # root would own the files, in the user's folders
    gc.set_threshold(200_000)  # imports create 125,000 objects and no garbage: saves a fifth of a start
    # While one thread imports boto3, another one logs in to the nodes, and waits this long for each packet.
    sys.setswitchinterval(0.0005)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [path for path in sys.path if path == here or os.path.abspath(path) not in given]
    try:
        from cluster.main import main as run  # noqa: PLC0415 - earlier, it could be the user's
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)  # as cluster.main does once it runs
    run()
