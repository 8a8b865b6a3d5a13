"""Shared by the training scripts. Runs on the nodes: Python >= 3.6, MXNet, its numpy, nothing else."""
