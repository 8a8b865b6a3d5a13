"""Shared by the training scripts. Runs on the nodes: Python >= 3.6, MXNet, its numpy, nothing else."""


class ScriptError(Exception):
    """Training cannot begin or go on; the message says why and what to do."""
