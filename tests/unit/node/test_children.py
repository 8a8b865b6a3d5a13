"""Programs that an asyncio program runs: their exit codes, their output and their time limit."""

import asyncio
import subprocess
import sys

from node.children import Ended, run

# Runs commands while it adopts orphans, and says which codes it got; ends when no child is left, not even a dead one.
ADOPTS = """
import asyncio, os
from node import children
async def main():
    children.adopt_orphans()
    orphans = "for i in 1 2 3; do (sleep 0.0$i &); done; exit 3"
    ended = await asyncio.gather(*(children.run(["/bin/sh", "-c", orphans], 20) for _ in range(30)))
    print({one.code for one in ended})
    while True:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        await asyncio.sleep(0.01)
asyncio.run(main())
"""


def test_codes_beside_orphans() -> None:
    done = subprocess.run([sys.executable, "-c", ADOPTS], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "{3}\n", done.stderr


def test_output_and_input() -> None:
    ended = asyncio.run(run(["/bin/sh", "-c", "read x; echo $x; echo no >&2; kill -9 $$"], 20, given=b"yes\n"))
    assert ended == Ended(-9, b"yes\n", b"no\n")


def test_a_program_that_does_not_end_is_killed() -> None:
    ended = asyncio.run(run(["/bin/sh", "-c", "echo why >&2; exec sleep 600"], 0.3))
    assert ended == Ended(None, b"", b"why\n")
