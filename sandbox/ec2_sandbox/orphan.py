"""Removes a sandbox whose owner's process has ended. The sandbox's daemon becomes this program when it ends.

python -m ec2_sandbox.orphan FOLDER
"""

import sys
from pathlib import Path

from ec2_sandbox import control
from ec2_sandbox.paths import paths_of
from ec2_sandbox.progress import silent
from ec2_sandbox.sandbox import remove_temporary_folder

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    control.prune([paths_of(folder).id], report=silent)  # not a sandbox that the folder has had since
    remove_temporary_folder(folder)
