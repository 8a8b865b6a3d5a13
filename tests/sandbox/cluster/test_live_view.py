"""`cluster train` at a real terminal, with a real job on the nodes."""

import pytest

from preloaded import preloaded
from project import CLUSTER, Project
from terminal import Terminal

pytestmark = pytest.mark.sandbox

SCRIPT = """
import time
for batch in range(10, 400, 10):
    print("Epoch[0] Batch [%d-%d]\\tSpeed: 2000.00 samples/sec\\taccuracy=0.500000" % (batch - 10, batch))
    time.sleep(0.05)
print("Epoch[0] Validation-accuracy=0.750000")
raise SystemExit("AttributeError: module 'numpy' has no attribute 'bool'.")
"""


def test_the_view_of_a_job(two_nodes: Project) -> None:
    """How far it is, and what to do about its end."""
    terminal = Terminal(columns=120, lines=40)
    process = preloaded().start(
        [CLUSTER, "train", "--kv-store", "local", "-n", "1", "--", "python", "-c", SCRIPT],
        terminal.theirs,
        terminal.theirs,
        cwd=two_nodes.directory,
        env=two_nodes.environment() | {"TERM": "xterm-256color"},
        is_at_terminal=True,
    )
    try:
        terminal.wait_for(lambda: "2.00 k samples/s, 1 worker" in terminal.raw, timeout_s=120)
        assert process.wait(timeout=120) == 1
        text = terminal.settle()
    finally:
        process.kill_session()
        process.wait()
        terminal.close()
    assert "Speed:" not in text
    end = text[text.index("[worker 0 node-0] Epoch[0] Validation-accuracy=0.750000") :].splitlines()
    assert end[1] == "[worker 0 node-0] AttributeError: module 'numpy' has no attribute 'bool'."
    assert end[2].startswith("hint [worker 0 node-0]: numpy is too new for MXNet")
    error = next(at for at, line in enumerate(end) if line.startswith("error: job "))
    summary = "2.00 k samples/s over 1 worker, epoch 0, accuracy 0.5, validation-accuracy 0.75, "
    assert any(line.startswith(summary) for line in end[3:error])
