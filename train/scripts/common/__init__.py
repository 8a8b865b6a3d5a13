"""Code shared by the training scripts. Runs on the nodes: Python >= 3.6, only MXNet and its numpy."""


class ScriptError(Exception):
    """Training cannot start or continue; the message says why and what to do."""
