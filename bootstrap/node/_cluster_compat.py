"""Puts back what MXNet 1.x uses and later Pythons and NumPys dropped. Imported by a .pth file of our environment only.

- threading.Thread.isAlive, gone in Python 3.9, used by MXNet's tools/launch.py;
- np.bool, np.int, np.float, np.object, gone in NumPy 1.24, used by `import mxnet`.

And it loads the CUDA libraries that libmxnet.so needs, so that it finds them without LD_LIBRARY_PATH: those that
check_libraries.py found, in the nvidia-* wheels or elsewhere on this node. The last two when MXNet is about to be
imported, not at every start of Python.

Runs on Python 3.6 and later.
"""

import ctypes
import glob
import os
import sys
import threading

if not hasattr(threading.Thread, "isAlive"):
    threading.Thread.isAlive = threading.Thread.is_alive


def _load_cuda():
    """Load what can be loaded: one library needs another, so go round until a round loads nothing more.

    What stays unloaded needs what is not there, such as the driver's libcuda.so.1: MXNet's own import says so.
    """
    try:
        with open(os.path.join(sys.prefix, ".preload"), encoding="utf-8") as stream:
            waiting = stream.read().splitlines()
    except FileNotFoundError:  # check_libraries.py has not come to it yet
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


class _BeforeMXNet(object):
    @classmethod
    def find_spec(cls, name, path=None, target=None):  # noqa: ARG003 - the import system passes all three
        if name == "mxnet":
            sys.meta_path.remove(cls)
            import numpy  # noqa: ICN001 - np is what it is called in a program

            for alias, original in (("bool", bool), ("int", int), ("float", float), ("object", object)):
                if alias not in vars(numpy):
                    setattr(numpy, alias, original)
            _load_cuda()
        # No spec: the finders that follow find it.


sys.meta_path.insert(0, _BeforeMXNet)
