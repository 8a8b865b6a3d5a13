"""Runs a shell script on a node, keeps its last lines of output, and ends it when it is silent for too long.

Python 3.6 and later, standard library only.
"""

import collections
import os
import signal
import subprocess
import tempfile
import threading
import time

LAST_LINES = 20
LINE_BYTES_AT_MOST = 1000
READ_BYTES = 1 << 16
REST_OF_OUTPUT_S = 1.0
# It holds the lock, so that the next agent waits for the script even if this agent is killed. The script itself does
# not hold it: its background processes would hold it for ever.
KEEPER = '"$@" %d>&-; exit $?'


class Failed(Exception):
    """The script failed. exit_code: negative for a signal. lines: the last lines of its output."""

    def __init__(self, exit_code, lines):
        super(Failed, self).__init__(exit_code)
        self.exit_code = exit_code
        self.lines = lines


def run(task, lock):
    """Run task["text"] to its end, in the user's home. Raises Failed, also when nothing is said for "silence_s".

    lock: the descriptor of the open file that is locked.
    """
    incoming = os.path.join(os.path.expanduser("~"), ".cluster", "incoming")
    # Not on a command line, which all users can read and which is limited to 128 KiB.
    with tempfile.NamedTemporaryFile("w", prefix="script-", dir=incoming, encoding="utf-8") as text:
        text.write(task["text"])
        text.flush()
        code, output = follow(["/bin/sh", text.name], task["silence_s"], lock)
    if code != 0:
        raise Failed(code, list(output.lines))


def follow(command, silence_s, lock):
    """Run a command to its end; returns its exit code and its Output."""
    child = subprocess.Popen(
        ["/bin/sh", "-c", KEEPER % lock, "sh"] + command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=os.path.expanduser("~"),
        pass_fds=(lock,),
        start_new_session=True,
    )
    output = Output(child.stdout)
    over = threading.Event()
    reader = start_thread(output.read)
    start_thread(end_when_silent, child, output, silence_s, over)
    code = child.wait()
    over.set()
    reader.join(REST_OF_OUTPUT_S)  # what it left running may hold its output open
    return code, output


def end_when_silent(child, output, silence_s, over):
    """Kill the script, and what it has started, when it says nothing for so long."""
    while not over.wait(min(1.0, silence_s)):
        if time.monotonic() > output.heard + silence_s:
            output.lines.append("(it said nothing for %g s, and was ended)" % silence_s)
            os.killpg(child.pid, signal.SIGKILL)
            return


class Output(object):
    """The last lines of what a process prints, and when it last printed anything."""

    def __init__(self, stream):
        self.lines = collections.deque(maxlen=LAST_LINES)
        self.heard = time.monotonic()
        self._stream = stream

    def read(self):
        """Read until it is closed."""
        rest = b""
        while True:
            data = os.read(self._stream.fileno(), READ_BYTES)
            self.heard = time.monotonic()
            lines = (rest + data).split(b"\n")
            rest = lines.pop()[-LINE_BYTES_AT_MOST:]
            if not data and rest:
                lines.append(rest)
            self.lines.extend(show(line) for line in lines[-LAST_LINES:])
            if not data:
                break


def show(line):
    """A line as text; of a progress bar, what it showed last."""
    return line.rstrip(b"\r").rpartition(b"\r")[2][:LINE_BYTES_AT_MOST].decode("utf-8", "replace")


def start_thread(target, *arguments):
    """Run it in the background; it ends with the process."""
    thread = threading.Thread(target=target, args=arguments)
    thread.daemon = True
    thread.start()
    return thread
