"""Runs a program of this folder on a node: `python -Es CODE/node PROGRAM ARGUMENTS...`.

CODE is the folder of this project's files on the node, which import each other as `node...`. -Es makes Python
ignore the user's PYTHON... variables and packages.
"""

import gc
import importlib
import sys
from pathlib import Path

PROGRAMS = {
    "jobs": "node.jobs",
    "supervise": "node.supervisor.supervise",
    "launch": "node.supervisor.launch",
    "agent": "node.agent.agent",
    "send_files": "node.job.send_files",
    "results": "node.job.results",
    "health": "node.setup.health_report",
    "verify": "node.setup.verify",
    "verify_s3": "node.staging.verify_s3",
    "burn_in": "node.setup.burn_in",
    "run_setup": "node.setup.run_setup",
    "setup_env": "node.setup.setup_env",
    "check_libraries": "node.setup.check_libraries",
    "exec": "node.setup.exec_command",
    "notify": "node.setup.notify",
    "containers": "node.setup.containers.prepare",
    "mount_volumes": "node.setup.volumes.mount_volumes",
}

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    sys.modules["typing_extensions"] = None  # type: ignore[assignment] # msgspec imports it, but needs only typing
    gc.disable()  # imports create no garbage, and looking for it takes a tenth of a process's start and end
    program = importlib.import_module(PROGRAMS[sys.argv.pop(1)])
    gc.freeze()
    gc.enable()
    sys.exit(program.main())
