"""Puts back what MXNet 1.x uses and later Pythons and NumPys dropped. Imported by a .pth file of our environment only.

- threading.Thread.isAlive, gone in Python 3.9, used by MXNet's tools/launch.py;
- np.bool, np.int, np.float, np.object, gone in NumPy 1.24, used by `import mxnet`. They are set when MXNet is about to
  be imported, not at every start of Python.

Runs on Python 3.6 and later.
"""

import sys
import threading

if not hasattr(threading.Thread, "isAlive"):
    threading.Thread.isAlive = threading.Thread.is_alive


class _BeforeMXNet(object):
    @classmethod
    def find_spec(cls, name, path=None, target=None):  # noqa: ARG003 - the import system passes all three
        if name == "mxnet":
            sys.meta_path.remove(cls)
            import numpy  # noqa: ICN001 - np is what it is called in a program

            for alias, original in (("bool", bool), ("int", int), ("float", float), ("object", object)):
                if alias not in vars(numpy):
                    setattr(numpy, alias, original)
        # No spec: the finders that follow find it.


sys.meta_path.insert(0, _BeforeMXNet)
