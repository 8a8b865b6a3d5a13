"""Runs a program of this folder on a node: `python -Es CODE/train/node PROGRAM ARGUMENTS...`.

CODE is the folder of this project's files on the node, which import each other as `train.node...`. -Es makes Python
ignore the user's PYTHON... variables and packages.
"""

import gc
import importlib
import sys
from pathlib import Path

PROGRAMS = {
    "jobs": "train.node.jobs",
    "supervise": "train.node.supervisor.supervisor",
    "launch": "train.node.supervisor.launch",
    "torchrun": "train.node.torchrun",
    "ssh_proxy": "train.node.supervisor.ssh_proxy",
    "role": "train.node.role.role",
    "stage": "train.node.staging.stage",
    "send_files": "train.node.send_files",
    "results": "train.node.results",
    "bench_network": "train.node.bench_network",
    "health": "bootstrap.node.health",
}

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    gc.disable()  # imports create no garbage, and looking for it takes a tenth of a process's start and end
    program = importlib.import_module(PROGRAMS[sys.argv.pop(1)])
    gc.freeze()
    gc.enable()
    sys.exit(program.main())
