"""Sets up one node: takes the missing files, passes them on to other nodes, and runs its tasks.

It is started over ssh, and exchanges lines of JSON with bootstrap/transfer/distribute.py. The first line is the order:

    {"address": private address, "secret": hexadecimal, "lock_timeout_s": seconds,
     "files": [{"sha256", "name", "size", "urls": [...]}, ...], in the order in which they are taken,
     "tasks": [{"kind": "script", "what": words, "text": shell script, "silence_s": seconds, "notice_s": or null}
               or {"kind": "tree", ...}, see place_tree.place, ...]}

It answers {"listening": port}, and receives the sources of the files: {"peers": [[address, port], ...]}, or
{"index": true, "first_s": seconds}. If these do not provide a file, it sends
{"stuck": sha256, "have": bytes, "why": [...]}, and receives, for that file, other peers, "index", or
{"upload": sha256, "offset": o, "size": n} and then n bytes.
It sends {"begun": index of a task}, and at the end {"done": true} or {"failed": {"what", "exit_code" or null,
"output": last lines}}. In between, it sends {"alive": bytes so far}, and {"notice": text} for the user when a script
has printed nothing for notice_s seconds.

It serves other nodes until its stdin ends. Then it exits, but only after the running task, since a package manager must
not be killed. It creates everything under a temporary name first.

Python 3.6 and later, standard library only.
"""

import collections
import fcntl
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import chain
import place_tree
import store
import urls
from store import start_thread

ALIVE_EVERY_S = 1.0
UPLOAD_READ_BYTES = 1 << 18
LAST_LINES = 20
LINE_BYTES_AT_MOST = 1000
READ_BYTES = 1 << 16
REST_OF_OUTPUT_S = 1.0
# A script's parent holds the lock, so that the next agent waits for the script even if this agent is killed. The script
# itself does not hold it: its background processes would hold it forever.
KEEPER = '"$@" %d>&-; exit $?'


class Failed(Exception):
    """The node cannot be set up. `report`: what is sent to the user's machine."""

    def __init__(self, what, exit_code=None, output=()):
        super(Failed, self).__init__(what)
        self.report = {"what": str(what), "exit_code": exit_code, "output": list(output)}


class SetUpAgent(object):
    """One set-up, from the order to the end of stdin."""

    def __init__(self, control, order):
        self.control = control
        self.order = order
        self.root = os.path.join(os.path.expanduser("~"), ".cluster")
        self.secret = bytes.fromhex(order["secret"])
        self.speaking = threading.Lock()
        self.busy = threading.Lock()  # held while a task runs
        self.leaving = False
        self.directions = queue.Queue()
        self.wanted = []
        self.store = None

    def report(self, message):
        """Sends a message to the user's machine."""
        with self.speaking:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    # -- files ---------------------------------------------------------------------------------------------------

    def lock(self):
        """Locks out other set-ups of this node. Waits for a script that a killed command has left running.

        Returns the descriptor of the lock. Raises Failed if another set-up runs for too long.
        """
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        handle = os.open(self.root, os.O_RDONLY)
        deadline = time.monotonic() + self.order["lock_timeout_s"]
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise Failed("another set-up of this node is still running") from error
                time.sleep(0.05)
        for name in ("files", "env", "tree", "runtime", "tools", "ssh", "incoming", "setup", "python"):
            os.makedirs(os.path.join(self.root, name), mode=0o700, exist_ok=True)
        return handle

    def take_files(self):
        """Takes all wanted files, in order.

        Each file starts with the sources of the first direction. Otherwise, two nodes that gave each other a file could
        wait for each other for the next one.
        """
        first = self.read_direction()
        for arriving in self.wanted:
            direction = first
            while not arriving.whole:
                try:
                    self.take_one(direction, arriving)
                except chain.Stuck as stuck:
                    self.report({"stuck": arriving.sha256, "have": arriving.have, "why": stuck.why})
                    direction = self.read_direction()

    def take_one(self, direction, arriving):
        """Takes one file from the source that a direction names. Raises chain.Stuck, Failed, store.DiskFailed.

        A file that arrives damaged starts again, with the next direction.
        """
        try:
            if "peers" in direction:
                direction["taker"].take(arriving)
            elif "index" in direction:
                wanted = next(file for file in self.order["files"] if file["sha256"] == arriving.sha256)
                urls.fetch(wanted["urls"], arriving, direction["first_s"])
            elif direction["upload"] == arriving.sha256:
                self.receive(direction, arriving)
            else:
                raise chain.Stuck([])
        except store.Damaged as error:
            raise chain.Stuck([str(error)]) from error

    def read_direction(self):
        """The next direction from the user's machine."""
        direction = self.directions.get()
        if "peers" in direction:
            peers = [(address, port) for address, port in direction["peers"]]
            direction["taker"] = chain.Taker(peers, self.secret)
        return direction

    def receive(self, direction, arriving):
        """Reads a file's bytes from stdin. Raises store.Damaged, store.DiskFailed."""
        offset, end = direction["offset"], direction["offset"] + direction["size"]
        while offset < end:
            data = self.control.read1(min(UPLOAD_READ_BYTES, end - offset))
            if not data:
                leave()
            arriving.append(data, offset)
            offset += len(data)
        direction["received"].set()
        arriving.finish()

    def follow_control(self):
        """Reads stdin to its end, and then exits, since the user's machine is done or gone."""
        while True:
            line = self.control.readline()
            if not line:
                break
            try:
                direction = dict(json.loads(line.decode("utf-8")), received=threading.Event())
            except (ValueError, TypeError):
                self.fail(Failed("what came over ssh is not a message: %r" % line[:80]).report)
            self.directions.put(direction)
            if "upload" in direction:
                direction["received"].wait()  # `receive` reads the bytes that follow
        self.leaving = True
        with self.busy:
            place_tree.remove_archives(self.root, self.order["tasks"])
            leave()

    # -- tasks ---------------------------------------------------------------------------------------------------

    def run_tasks(self, lock):
        """Runs the tasks in order."""
        for index, task in enumerate(self.order["tasks"]):
            with self.busy:
                if self.leaving:
                    leave()
                self.report({"begun": index})
                if task["kind"] == "tree":
                    place_tree.place(self.root, task)
                else:
                    self.run_script(task, lock)

    def run_script(self, task, lock):
        """Runs task["text"] to its end, in the user's home. Raises Failed, also after "silence_s" without output.

        lock: the descriptor of the open file that is locked.
        """
        incoming = os.path.join(self.root, "incoming")
        # A file, because all users can read a command line, which is also limited to 128 KiB.
        with tempfile.NamedTemporaryFile("w", prefix="script-", dir=incoming, encoding="utf-8") as text:
            text.write(task["text"])
            text.flush()
            code, lines = follow(["/bin/sh", text.name], task, lock, self.report)
        if code != 0:
            raise Failed(task["what"], code, lines)

    def stay_alive(self):
        """Reports, every ALIVE_EVERY_S seconds, how many bytes have arrived."""
        while True:
            time.sleep(ALIVE_EVERY_S)
            self.report({"alive": sum(arriving.have for arriving in self.wanted)})

    def run(self):
        """Runs the whole set-up, in a thread of its own: the main thread reads stdin."""
        try:
            self.set_up()
        except Failed as error:
            self.fail(error.report)
        except store.DiskFailed as error:
            self.fail(Failed(error).report)
        except BrokenPipeError:
            os._exit(1)  # the user's machine is gone
        except OSError as error:
            where = "%s: " % error.filename if error.filename else ""
            self.fail(Failed(where + (error.strerror or str(error))).report)
        except BaseException:  # noqa: BLE001 - shown, and then the process ends, which it must not do silently
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def set_up(self):
        """Takes the files, and runs the tasks."""
        start_thread(self.stay_alive)
        lock = self.lock()
        self.store = store.Store(self.root)
        self.wanted = self.store.expect(self.order["files"])
        self.store.forget_partial()
        server = chain.Server(self.store, self.order["address"], self.secret)
        self.report({"listening": server.port})
        if self.wanted:
            self.take_files()
        self.run_tasks(lock)
        os.close(lock)
        self.report({"done": True})

    def fail(self, message):
        """Reports the failure, and exits. Nodes that take from this one notice, and take from the one before it."""
        self.report({"failed": message})
        os._exit(1)


def follow(command, task, lock, report):
    """Runs a task's command to its end. Returns its exit code and its last lines.

    lock: the descriptor that its parent holds. report: called with the messages for the user's machine.
    """
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
    start_thread(watch_silence, child, output, task, over, report)
    code = child.wait()
    over.set()
    reader.join(REST_OF_OUTPUT_S)  # background processes may hold its output open
    return code, output.last_lines()


def watch_silence(child, output, task, over, report):
    """Reports each silence of notice_s seconds; after silence_s, kills the script and the processes of its group."""
    silence_s, notice_s = task["silence_s"], task.get("notice_s")
    reported = None
    while not over.wait(min(1.0, silence_s, notice_s or 1.0)):
        last_read = output.last_read_at
        if time.monotonic() > last_read + silence_s:
            output.ending = ["(killed after %g s without output)" % silence_s]
            os.killpg(child.pid, signal.SIGKILL)
            return
        if notice_s and reported != last_read and time.monotonic() > last_read + notice_s:
            reported = last_read
            last = "".join(output.last_lines()[-1:])
            report({"notice": "%s has printed nothing for %d s, after: %s" % (task["what"], notice_s, last)})


class Output(object):
    """The last lines of what a process prints, and when it last printed anything."""

    def __init__(self, stream):
        self.lines = collections.deque(maxlen=LAST_LINES)
        self.last_read_at = time.monotonic()
        self.ending = []
        self._stream = stream
        self._rest = b""

    def read(self):
        """Reads the stream until it is closed."""
        while True:
            data = os.read(self._stream.fileno(), READ_BYTES)
            if not data:
                break
            self.last_read_at = time.monotonic()
            lines = (self._rest + data).split(b"\n")
            self._rest = lines.pop()[-LINE_BYTES_AT_MOST:]
            self.lines.extend(show(line) for line in lines[-LAST_LINES:])

    def last_lines(self):
        """The last lines so far, with one that has not ended, such as a prompt."""
        rest = [show(self._rest)] if self._rest else []
        return (list(self.lines) + rest + self.ending)[-LAST_LINES:]


def show(line):
    """A line of output as text; for a progress bar, its last state."""
    return line.rstrip(b"\r").rpartition(b"\r")[2][:LINE_BYTES_AT_MOST].decode("utf-8", "replace")


def leave():
    """Ends this process now, without waiting for its threads."""
    os._exit(0)


def main():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    control = sys.stdin.buffer
    agent = SetUpAgent(control, json.loads(control.readline().decode("utf-8")))
    start_thread(agent.run)
    agent.follow_control()
