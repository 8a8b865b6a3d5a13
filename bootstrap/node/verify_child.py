"""Probes: programs that may hang, abort or take the interpreter with them, each in a process of its own.

Python 3.6 and later, standard library only.
"""

import json
import os
import signal
import subprocess
import threading

import setup_env

KEPT_BYTES = 1 << 16
_running = set()
_lock = threading.Lock()


def environment(python, setup):
    """What a probe's process has around it; setup: the digest of the user's set-up commands, or None."""
    env = dict(os.environ)
    # Unset, MXNet takes all cores for six numbers.
    env.update({"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"})
    env["PATH"] = "%s:/usr/local/bin:/usr/bin:/bin" % os.path.dirname(python)
    if setup is None:
        return env
    cluster_dir = os.path.join(os.path.expanduser("~"), ".cluster")
    return setup_env.merge(env, setup_env.read(cluster_dir, setup))


def run(command, lines, env, timeout_s):
    """Run a command to its end, giving it a list of values as JSON lines; its end as a dict.

    exit_code is None when it was ended after timeout_s seconds, and below 0 when a signal ended it.
    """
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with _lock:
        _running.add(process)
    try:
        given = b"".join(json.dumps(line).encode("utf-8") + b"\n" for line in lines)
        stdout, stderr = process.communicate(given, timeout=timeout_s)
        exit_code = process.returncode
    except subprocess.TimeoutExpired:
        _kill(process)
        stdout, stderr = process.communicate()
        exit_code = None
    finally:
        with _lock:
            _running.discard(process)
    return {"exit_code": exit_code, "stdout": _tail(stdout), "stderr": _tail(stderr)}


def kill_all():
    """End every probe that still runs."""
    with _lock:
        for process in _running:
            _kill(process)


def _kill(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _tail(data):
    return data[-KEPT_BYTES:].decode("utf-8", "replace")
