"""Runs the user's set-up commands in one login shell, and stores the variables that they export for jobs.

    python run_setup.py FOLDER DIGEST SILENCE_S NOTICE_S

FOLDER/DIGEST.json is the list of commands. When all have succeeded, the program writes their changes of the environment
to FOLDER/DIGEST.env (for setup_env.py), creates FOLDER/DIGEST.done, and removes the files of earlier lists. A command
that has printed nothing for NOTICE_S seconds is named in a line for the user, which agent.py passes on; after SILENCE_S
seconds, it is killed.

Python 3.6 and later, standard library only.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

# Bash's own variables, and those that describe the shell, not the set-up.
NOT_KEPT = frozenset(["_", "SHLVL", "PWD", "OLDPWD", "BASHOPTS", "SHELLOPTS", "HOME", "USER", "LOGNAME"])
NOTICE = "\0notice "  # the beginning of a line for the user
READ_BYTES = 1 << 16
SHOWN = 200


def render(commands, work):
    """The script for bash. Each command is one quoted word for `eval`, so its syntax cannot affect the next command."""
    env = shlex.quote(shutil.which("env") or "/usr/bin/env")
    lines = ["set -e", "%s -0 >%s" % (env, shlex.quote(work + "/before"))]
    for number, command in enumerate(commands, 1):
        lines.append("printf %d >%s" % (number, shlex.quote(work + "/at")))
        lines.append("eval %s" % shlex.quote(command))
    lines.append("%s -0 >%s" % (env, shlex.quote(work + "/after")))
    return "\n".join(lines) + "\n"


def read_env(path):
    """The variables in the output of `env -0`, without functions and the shell's own variables."""
    with open(path, "rb") as stream:
        entries = stream.read().decode("utf-8", "surrogateescape").split("\0")
    pairs = (entry.partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs if name.isidentifier() and name not in NOT_KEPT}


def compare(before, after):
    """The changes of variables; for lists of paths, the entries added at the front and at the end."""
    changes = {"set": {}, "prepend": {}, "append": {}, "unset": sorted(set(before) - set(after))}
    for name, value in after.items():
        old = before.get(name)
        if value == old:
            continue
        if not name.endswith("PATH"):
            changes["set"][name] = value
            continue
        kept = old.split(":") if old else []
        words = [word for word in value.split(":") if word]
        first = next((index for index, word in enumerate(words) if word in kept), len(words))
        for key, part in (("prepend", words[:first]), ("append", words[first:])):
            new = [word for word in part if word not in kept]
            if new:
                changes[key][name] = new
    return changes


class Shell(object):
    """A running login shell, whose output is passed on."""

    def __init__(self, path):
        self.heard = time.monotonic()
        self.last = b"\n"
        self.child = subprocess.Popen(
            ["bash", "-l", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=os.path.expanduser("~"),
            start_new_session=True,
        )

    def run(self, silence_s, notice_s, tell_silence):
        """Waits for the shell's end. Returns its exit code; None if it was killed after too long a silence.

        Background processes may keep its output open, so only the end of the shell itself counts.
        tell_silence: called after notice_s seconds without output, once for each such silence.
        """
        told = None
        listener = threading.Thread(target=self.listen)
        listener.daemon = True
        listener.start()
        while True:
            try:
                code = self.child.wait(timeout=min(1, notice_s))
                break
            except subprocess.TimeoutExpired:
                heard = self.heard
                if time.monotonic() > heard + notice_s and told != heard:
                    told = heard
                    tell_silence()
                if time.monotonic() > self.heard + silence_s:
                    os.killpg(self.child.pid, signal.SIGKILL)
                    code = None
                    break
        listener.join(timeout=1)
        if self.last != b"\n":
            print(flush=True)
        return code

    def listen(self):
        while True:
            data = os.read(self.child.stdout.fileno(), READ_BYTES)
            if not data:
                return
            self.heard = time.monotonic()
            self.last = data[-1:]
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def shorten(command):
    """The first line of a command, for messages."""
    first, *others = command.strip().splitlines() or [""]
    return first[:SHOWN] + ("..." if others or len(first) > SHOWN else "")


def write(path, text):
    with open(path + ".new", "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(path + ".new", path)


def find_command(commands, work):
    """(its number and that of all, its first line) of the command that has begun last; None before the first."""
    try:
        with open(work + "/at") as stream:
            at = int(stream.read())
    except (FileNotFoundError, ValueError):  # ValueError: it is being written
        return None
    return "setup command %d of %d" % (at, len(commands)), shorten(commands[at - 1])


def run_all(commands, work, silence_s, notice_s):
    """Runs the commands. Returns (code, message) if they fail, else None."""

    def tell_silence():
        which, text = find_command(commands, work) or ("the login shell", "this user's profile")
        print("%s%s has printed nothing for %d s: %s" % (NOTICE, which, notice_s, text), flush=True)

    path = os.path.join(work, "commands")
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(render(commands, work))
    code = Shell(path).run(silence_s, notice_s, tell_silence)
    if code == 0 and os.path.exists(work + "/after"):
        return None
    found = find_command(commands, work)
    if found is None:
        return code or 1, "the login shell ended before the first setup command: check this user's profile"
    which, text = found
    if code is None:
        ending = "was killed after %d s without output" % silence_s
    elif code == 0:
        ending = "left the shell with `exit`"
    elif code < 0:
        ending = "was killed by signal %d" % -code
    else:
        ending = "ended with exit code %d" % code
    return code or 1, "%s %s: %s" % (which, ending, text)


def main():
    folder, digest = os.path.abspath(sys.argv[1]), sys.argv[2]
    silence_s, notice_s = map(float, sys.argv[3:])
    base = os.path.join(folder, digest)
    os.umask(0o077)
    with open(base + ".json", encoding="utf-8", errors="surrogateescape") as stream:
        commands = json.load(stream)
    os.unlink(base + ".json")  # it may contain secrets
    if shutil.which("bash") is None:
        sys.exit("setup commands need bash, which this node does not have")
    work = tempfile.mkdtemp(prefix=".run-", dir=folder)
    os.umask(0o022)  # as for commands that the user types
    try:
        failed = run_all(commands, work, silence_s, notice_s)
        os.umask(0o077)
        if failed is None:
            changes = compare(read_env(work + "/before"), read_env(work + "/after"))
            write(base + ".env", json.dumps(changes))
            write(base + ".done", "")
    finally:
        shutil.rmtree(work)
    if failed is not None:
        print(failed[1], flush=True)
        os._exit(failed[0] if 0 < failed[0] < 256 else 1)
    for name in os.listdir(folder):
        if not name.startswith(digest):  # without its files, an earlier list would run again
            path = os.path.join(folder, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    os._exit(0)  # background processes may still block the thread that reads output


if __name__ == "__main__":
    main()
