"""What users import, and the command `cluster`, kept apart from the user's own modules.

    from mxnet_cluster.records import iterate_records

The other packages of this project have common names, such as `train`. A user's program that has a module of such a name
would import that one in their place, so what is in this package imports none of them.

The user's PYTHONPATH comes before installed packages, and a train.py, sandbox.py or cluster/ there would be imported in
place of this project's packages. So this module, whose name nobody else has, takes PYTHONPATH away first, also from
the processes that the command starts on this machine.
"""

import os
import sys


def main() -> None:
    """Run the command and exit with its code."""
    given = {os.path.abspath(path) for path in os.environ.pop("PYTHONPATH", "").split(os.pathsep)}
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [path for path in sys.path if path == here or os.path.abspath(path) not in given]
    from cluster.main import main as run  # noqa: PLC0415 - only now is it ours

    run()
