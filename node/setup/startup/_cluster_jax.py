"""Lets jax.distributed.initialize() find the processes of a job. Imported by a .pth file of our environments.

JAX 0.10 reads the coordinator's address from the environment, but the number of processes and a process's own number
only from its arguments and from the subclasses of a class of its own, one for each kind of cluster.

Runs on Python 3.6 and later.
"""

import os
import sys


def _is_in_job():
    return {"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"} <= set(os.environ)


def _register():
    """Defines JAX's class for our jobs. JAX uses the first class that is present: ours is the last.

    JAX asks it only for what the program does not give.
    """
    from jax._src.clusters import ClusterEnv  # imports JAX's own classes, too

    class ClusterJob(ClusterEnv):
        name = "cluster"

        @classmethod
        def is_env_present(cls):
            return _is_in_job()

        @classmethod
        def get_coordinator_address(cls, *_args, **_options):  # the arguments depend on JAX's version
            return os.environ["JAX_COORDINATOR_ADDRESS"]

        @classmethod
        def get_process_count(cls):
            return int(os.environ["JAX_NUM_PROCESSES"])

        @classmethod
        def get_process_id(cls):
            return int(os.environ["JAX_PROCESS_ID"])

        @classmethod
        def get_local_process_id(cls):
            """None: the process keeps all its devices."""
            return


class _AtJAX(object):
    """Acts when the module with JAX's initialize() is about to be imported."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):  # noqa: ARG003 - the import system passes all three
        if name == "jax._src.distributed":
            sys.meta_path.remove(cls)
            try:
                _register()
            except Exception:  # noqa: BLE001, S110 - another version of JAX, which then acts as without us
                pass
        # Returns no spec: the finders that follow find the module.


if _is_in_job():
    sys.meta_path.insert(0, _AtJAX)
