"""Runs one command of `cluster exec` on a node, and ends it with all its children when the other side goes away.

stdin has one JSON line, the order {"words": [...]}. The end of stdin means that the command must end. stdout has lines:
    {"out": text}, {"err": text}   a piece of the command's stdout, stderr, with a character for each byte
    {"alive": true}                a sign of life, every two seconds
    {"exit": code, "signal": number or null, "left": [pids that could not be ended]}   the last one
The command's orphans become this process's children (PR_SET_CHILD_SUBREAPER), so that all descendants of the command
are found, whatever their session, user or environment. If the command ends on its own, its background processes keep
running, as with ssh.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from typing import IO, NoReturn

from node.protocol import OUTPUT_ENCODING
from node.setup import process_tree, setup_env
from node.setup.messages import end_with_stdin, send_message, stay_alive

QUIET_S = 0.5  # after the command's end, for pipes that background processes hold open
LAST_WORD_S = 5
PIECE_BYTES = 1 << 16
LONGEST_PIPE_BYTES = 1 << 20  # /proc/sys/fs/pipe-max-size


def main() -> NoReturn:
    """Runs the command of the order on stdin."""
    order = json.loads(sys.stdin.buffer.readline())
    process_tree.adopt_orphans()
    words = [word.encode("utf-8", "surrogateescape") for word in order["words"]]
    home = os.path.expanduser("~")
    code, left = follow(process_tree.start(words, setup_env.reach_near(os.environ), home, stderr=subprocess.PIPE))
    send_message({"exit": 128 - code if code < 0 else code, "signal": -code if code < 0 else None, "left": left})
    os._exit(0)  # does not wait for threads


def follow(child: "subprocess.Popen[bytes]") -> tuple[int, list[int]]:
    """Passes on a command's output until it ends; ends it when the other side is gone.

    Returns its exit code, as Popen does, and the pids that could not be ended.
    """
    ended = threading.Event()
    readers = [
        threading.Thread(target=pass_on, args=(name, stream, ended), daemon=True)
        for name, stream in (("out", child.stdout), ("err", child.stderr))
    ]
    try:
        end_with_stdin(lambda _line: None)
        stay_alive()
        for reader in readers:
            reader.start()
        code = child.wait()
        ended.set()
        for reader in readers:
            reader.join()
    except SystemExit:
        left = end_all()
        signal.alarm(LAST_WORD_S)  # this ends the process: the other side may be gone, and never read the rest
        return child.poll() or 0, left
    return code, []


def pass_on(name: str, stream: IO[bytes], ended: threading.Event) -> None:
    """Passes on a stream to its end, or to what the command itself has written. ended: whether the command has."""
    left_bytes = LONGEST_PIPE_BYTES
    while left_bytes > 0:
        if select.select([stream], [], [], QUIET_S)[0]:
            data = os.read(stream.fileno(), PIECE_BYTES)
            if not data:
                return
            try:
                send_message({name: data.decode(OUTPUT_ENCODING)})
            except OSError:  # the other side is gone, even if stdin has not ended
                os.kill(os.getpid(), signal.SIGHUP)
                return
            left_bytes -= len(data) if ended.is_set() else 0
        elif ended.is_set():
            return


def end_all() -> list[int]:
    """Ends all descendants of this process: SIGTERM, then SIGKILL. Returns the pids of those that have not ended."""
    import asyncio  # noqa: PLC0415 - most commands end by themselves, and importing it takes longer than they do

    from node.children import end_processes  # noqa: PLC0415 - as above

    left = asyncio.run(end_processes(process_tree.find_descendants, process_tree.our_programs_last))
    return [pid for pid, _, _ in left]
