"""Code shared by the training scripts. Runs on the nodes: Python >= 3.6, only MXNet and its numpy."""

import os
import sys

_CODE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
if _CODE not in sys.path:
    sys.path.append(_CODE)  # with mxnet_cluster and node


class ScriptError(Exception):
    """Training cannot start or continue; the message says why and what to do."""
