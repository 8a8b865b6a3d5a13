"""`cluster watch` at a real terminal, with a real job on the nodes."""

import re
import signal
import urllib.request
from collections.abc import Sequence

import pytest

from preloaded import preloaded
from project import CLUSTER, Project
from terminal import Screen, Terminal

pytestmark = pytest.mark.sandbox

ENDLESS = """
import itertools, time
for batch in itertools.count(10, 10):
    print("Epoch[0] Batch [%d-%d]\\tSpeed: 2000.00 samples/sec\\taccuracy=0.500000" % (batch - 10, batch), flush=True)
    time.sleep(0.05)
"""


class Unread(Screen):
    """A screen that draws nothing: textual moves the cursor in many ways."""

    def write(self, text: str) -> None:
        pass


def watch(
    two_nodes: Project, job: str, steps: Sequence[tuple[str, str]], *, columns: int, lines: int
) -> tuple[int, str]:
    """Runs `cluster watch` at a terminal. steps: what to wait for, and what to type then. Returns code and output."""
    terminal = Terminal(columns=columns, lines=lines)
    terminal.screen = Unread(columns, lines)
    process = preloaded().start(
        [CLUSTER, "watch", job],
        terminal.theirs,
        terminal.theirs,
        cwd=two_nodes.directory,
        env=two_nodes.environment()
        | {"TERM": "xterm-256color", "COLORTERM": ""}
        | ({"NO_COLOR": "1"} if lines > 30 else {}),
        is_at_terminal=True,
    )
    try:
        for text, keys in steps:
            before = len(terminal.raw)
            terminal.wait_for(lambda text=text, before=before: text in terminal.raw[before:], timeout_s=60)  # type: ignore[misc]
            terminal.type(keys)
        code = process.wait(timeout=60)
        terminal.settle()
    finally:
        process.kill_session()
        process.wait()
        terminal.close()
    return code, terminal.raw


def test_watching_a_job(two_nodes: Project) -> None:
    """Leaving it, following it again, stopping it; without a terminal, `logs -f`."""
    started = two_nodes.run("train", "--kv-store", "local", "-n", "1", "--detach", "--", "python", "-c", ENDLESS)
    job = started.stdout.strip()
    code, text = watch(two_nodes, job, [("2.00 k samples/s", ""), ("GiB", "q")], columns=80, lines=24)
    assert code == 0
    left = text[text.rindex("\x1b[?1049l") :]
    assert f"job {job} continues: cluster watch {job} shows" in left
    steps = [("2.00 k samples/s", "s"), ("any other key", "y"), ("stopped", "q")]
    code, text = watch(two_nodes, job, steps, columns=200, lines=60)
    assert code == 130
    assert f"error: job {job} was stopped" in text[text.rindex("\x1b[?1049l") :]
    assert set(map(int, re.findall(r"[34]8;5;(\d+)", text))) <= {16, 231, *range(232, 256)}  # NO_COLOR: shades of grey
    with two_nodes.following("watch", "--web", job) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(url) as answer:
            assert job in answer.read().decode()
            assert "Refresh" not in answer.headers  # the job has ended
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    logs, plain = (two_nodes.run(*words, job, code=130) for words in (("logs", "-f"), ("watch",)))
    assert (plain.stdout, plain.stderr) == (logs.stdout, logs.stderr)
