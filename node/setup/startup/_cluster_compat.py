"""Restores names that MXNet 1.x uses and later Pythons and NumPys dropped. Imported by a .pth file of our environments.

- threading.Thread.isAlive, removed in Python 3.9, used by MXNet's tools/launch.py;
- np.bool, np.int, np.float, np.object, removed in NumPy 1.24, used by `import mxnet`.

It also loads the CUDA libraries that libmxnet.so needs, so that it finds them without LD_LIBRARY_PATH: those that
check_libraries.py found, in the nvidia-* wheels or elsewhere on this node. NumPy and CUDA are prepared only when MXNet
is about to be imported, not at every start of Python.

It fixes how a worker of a distributed job ends, both after a success and after a failure:
- When Python exits, MXNet's engine drops operations that it has not begun (ThreadedEngine::ExecuteOprBlock in its
  shutdown phase), such as the last batch's pushes. The other workers of a dist_sync job then wait forever for them.
  So a worker waits for its engine first.
- A failing worker waits in its kv-store's destructor for the others (barrier_before_exit), which wait for its
  gradients. So it exits without the destructor.

Runs on Python 3.6 and later.
"""

import atexit
import ctypes
import glob
import os
import sys
import threading

if not hasattr(threading.Thread, "isAlive"):
    threading.Thread.isAlive = threading.Thread.is_alive


def _load_cuda():
    """Loads the libraries in rounds, since they need each other, until a round loads none.

    The remaining ones need libraries that are missing, such as the driver's libcuda.so.1; MXNet's import reports those.
    """
    try:
        with open(os.path.join(sys.prefix, ".preload"), encoding="utf-8") as stream:
            waiting = stream.read().splitlines()
    except FileNotFoundError:  # check_libraries.py has not run yet
        here = os.path.dirname(os.path.abspath(__file__))
        waiting = glob.glob(os.path.join(here, "nvidia", "*", "lib", "*.so.*"))
    while waiting:
        left = []
        for path in waiting:
            try:
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            except OSError:
                left.append(path)
        if len(left) == len(waiting):
            return
        waiting = left


_failures = []  # possible exit codes of this process; the last one counts


def _note_failures():
    """Records when this process is about to fail, since exit handlers cannot ask Python about that."""
    show, leave = sys.excepthook, sys.exit

    def excepthook(kind, value, trace):
        _failures.append(130 if issubclass(kind, KeyboardInterrupt) else 1)
        show(kind, value, trace)

    def exit_(code=None):
        if code is not None and code != 0:
            _failures.append(code & 0xFF if isinstance(code, int) else 1)
        leave(code)

    sys.excepthook, sys.exit = excepthook, exit_


def _finish_work():
    """Waits for the engine. Runs before MXNet's own handler, which begins the engine's shutdown phase."""
    try:
        if not _failures:
            sys.modules["mxnet"].nd.waitall()
    except Exception:  # noqa: BLE001 - the process has failed in any case
        sys.excepthook(*sys.exc_info())


def _leave_if_failed():
    """After a failure, exit without the kv-store's destructor. Runs after the program's and MXNet's handlers."""
    if _failures:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_failures[-1])


def _prepare_numpy():
    import numpy  # noqa: ICN001 - np is the users' name for it

    for alias, original in (("bool", bool), ("int", int), ("float", float), ("object", object)):
        if alias not in vars(numpy):
            setattr(numpy, alias, original)


class _AtMXNet(object):
    """Acts when MXNet is imported. MXNet imports kvstore after the module that registers its exit handler."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):  # noqa: ARG003 - the import system passes all three
        is_worker = os.environ.get("DMLC_ROLE") == "worker"
        if name == "mxnet":
            _prepare_numpy()
            _load_cuda()
            if is_worker:
                _note_failures()
                atexit.register(_leave_if_failed)
            else:
                sys.meta_path.remove(cls)
        elif name == "mxnet.kvstore":
            atexit.register(_finish_work)
            sys.meta_path.remove(cls)
        # Returns no spec: the finders that follow find the module.


sys.meta_path.insert(0, _AtMXNet)
