"""Prepares MXNet as our environment does. An image's own Python imports it, because this folder is in PYTHONPATH.

Python imports only one sitecustomize: this one, which then imports the image's. Runs on Python 3.6 and later.
"""

import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_spec = importlib.util.spec_from_file_location(
    "_cluster_compat", os.path.join(os.path.dirname(os.path.dirname(_here)), "startup", "_cluster_compat.py")
)
_module = sys.modules["_cluster_compat"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _here]
del sys.modules["sitecustomize"]
try:
    import sitecustomize  # noqa: F401
except ImportError as error:
    if error.name != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = _module
