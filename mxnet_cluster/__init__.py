"""What users import, and the command `cluster`, separate from the user's own modules.

    from mxnet_cluster.records import iterate_records

The other packages of this project have common names, such as `train`, which a user's program may have too. So the
modules in this package import none of them.

The user's PYTHONPATH comes before installed packages: a train.py, sandbox.py or cluster/ there would replace this
project's packages. So `main`, in a package with a unique name, removes PYTHONPATH first, also for the processes that
the command starts on this machine.
"""

import os
import sys


def main() -> None:
    """Run the command and exit with its code."""
    given = {os.path.abspath(path) for path in os.environ.pop("PYTHONPATH", "").split(os.pathsep)}
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [path for path in sys.path if path == here or os.path.abspath(path) not in given]
    from cluster.main import main as run  # noqa: PLC0415 - before, it might be the user's

    run()
