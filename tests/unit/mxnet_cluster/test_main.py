"""The start of the command, before its modules are imported."""

import subprocess
import sys

INTERRUPTED_WHILE_IT_IMPORTS = """
import sys
import mxnet_cluster

class Interrupting:
    def find_spec(self, name, *_):
        if name == "cluster.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
mxnet_cluster.main()
"""


def test_an_interrupt_during_the_imports_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_IT_IMPORTS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")
