"""How a worker of a distributed job ends, when its script does not wait for what it has begun, or fails half-way."""

import pytest

from project import Project

pytestmark = pytest.mark.sandbox

# Each step needs both workers' values. Without bootstrap/node/_cluster_compat.py all three hang for ever: MXNet drops
# what its engine has not begun when Python exits, and a failing worker waits for the others in a destructor.
SCRIPT = """
import sys
import mxnet as mx

kv = mx.kv.create("dist_sync")
rank, how = kv.rank, sys.argv[1]
value = mx.nd.ones((300000,))
kv.init(0, value)
for step in range(30):
    kv.push(0, value)
    kv.pull(0, out=value)
    if rank == 0 or how != "end":
        value.wait_to_read()
    if step == 5 and rank == 1 and how == "raise":
        raise ValueError("on purpose")
    if step == 5 and rank == 1 and how == "exit":
        sys.exit(7)
print("end of", rank, flush=True)
"""


@pytest.mark.parametrize(
    ("how", "code", "said"), [("end", 0, "end of 1"), ("raise", 1, "ValueError: on purpose"), ("exit", 7, "")]
)
def test_a_worker_ends_however_its_script_does(two_nodes: Project, how: str, code: int, said: str) -> None:
    done = two_nodes.run("train", "--", "python", "-c", SCRIPT, how, code=code, timeout_s=60)
    assert said in done.stdout
    assert ("end of 0" in done.stdout) is (how == "end")
    assert (f"ended with exit code {code}" in done.stderr) is (code != 0)
