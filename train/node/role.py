"""Runs one process of a job (scheduler, server or worker) on a node, and ends with it or ends it.

    role.py             under ssh_proxy.py's ssh: the order comes on stdin, output and exit go to stdout, framed
    role.py scheduler   under launch.py on the head: the order is in $CLUSTER_ORDER, it reports to $CLUSTER_SOCKET
    role.py end JOB     ends what is left of a job on this host; prints a JSON list of what does not end

When its other side goes away (the end of stdin, or of the socket), it kills the process with all its children.
Secrets come in the order, and go into the process's environment: they are on no command line and in no file.
Python 3.6 and later, standard library only.
"""

import json
import os
import select
import socket
import sys
import time

import processes
import wire

PIPE_GRACE_S = 2.0
CONNECT_TIMEOUT_S = 5.0


def main():
    if sys.argv[1:2] == ["end"]:
        _, left = processes.end(sys.argv[2])
        print(json.dumps([[pid, words] for pid, _, words in left]))
        return 0
    if sys.argv[1:2] == ["scheduler"]:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(os.environ["CLUSTER_SOCKET"])
        order = json.loads(os.environ["CLUSTER_ORDER"])
        for key in (
            "DMLC_ROLE",
            "DMLC_PS_ROOT_URI",
            "DMLC_PS_ROOT_PORT",
            "DMLC_NUM_WORKER",
            "DMLC_NUM_SERVER",
        ):
            order["env"][key] = os.environ[key]
        descriptor = connection.fileno()
        wire.write_all(descriptor, wire.encode({"role": "scheduler", "host": order["host"]}))
        return run(order, descriptor, descriptor)
    order = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    return run(order, sys.stdin.fileno(), sys.stdout.fileno())


def run(order, lifeline, out):
    """Run the order's command; returns its exit code, or 128 + the number of the signal that ended it.

    lifeline: a descriptor whose end means that nobody listens any more. out: where the framed output goes.
    """
    env = environment(order)
    env[processes.JOB_VARIABLE] = order["job"]
    blocked = find_blocked(env)
    if blocked:
        wire.write_all(out, wire.encode({"line": blocked}))
        wire.write_all(out, wire.encode({"exit": 1, "signal": None}))
        return 1
    try:
        child = processes.start(order["command"], env, order["cwd"])
    except (OSError, ValueError) as error:  # ValueError: a NUL in a word or a variable
        wire.write_all(out, wire.encode({"line": "cannot start %r: %s" % (order["command"][0], error)}))
        wire.write_all(out, wire.encode({"exit": 127, "signal": None}))
        return 127
    try:
        wire.write_all(out, wire.encode({"started": child.pid}))
        _relay(child, lifeline, out)
        code = child.wait()
    finally:
        # On every way out, and also when the process is gone but has left children in its group.
        processes.end_group(child.pid)
    number = -code if code < 0 else None
    wire.write_all(out, wire.encode({"exit": code if code >= 0 else 128 - code, "signal": number}))
    return code if code >= 0 else 128 - code


def find_blocked(env):
    """Why the scheduler cannot be reached from here, or None: ps-lite itself would wait for ever, without a word."""
    if env.get("DMLC_ROLE") not in ("server", "worker"):
        return None
    host, port = env["DMLC_PS_ROOT_URI"], int(env["DMLC_PS_ROOT_PORT"])
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return None  # it can be reached; the scheduler just does not listen yet
    except (OSError, socket.timeout) as error:
        return "the scheduler's port %d on %s cannot be reached from here (%s): does the security group allow %s" % (
            port,
            host,
            error,
            "everything between its members?",
        )
    return None


def environment(order):
    """The environment of a job's process: this one's, what set-up commands exported, and the job's own over it."""
    env = base_environment()
    if order["setup"] is not None:
        import setup_env  # bootstrap's; it travels beside this file

        cluster_dir = os.path.join(os.path.expanduser("~"), ".cluster")
        changes = setup_env.read(cluster_dir, order["setup"])
        own_path = order["env"].get("PATH", env.get("PATH", ""))
        path = setup_env.merge({"PATH": own_path}, changes)["PATH"]
        # The job's own Python comes first, whatever the commands loaded.
        first = own_path.partition(":")[0]
        words = [first] + [word for word in path.split(":") if word != first]
        return dict(setup_env.merge(env, changes), **dict(order["env"], PATH=":".join(words)))
    return dict(env, **order["env"])


def base_environment():
    """The environment of a job's process before the job's own: this one's, without what is not meant for it."""
    keep = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TZ", "TMPDIR")
    return {key: os.environ[key] for key in keep if key in os.environ}


def _relay(child, lifeline, out):
    """Pass the child's lines on until it ends; kill it when the lifeline does.

    The child may close its output long before it ends, and a grandchild may hold it open, and fill it, long after.
    """
    source = child.stdout.fileno()
    lines = wire.LineBuffer()
    watched = [source, lifeline]
    ended_at = None
    while True:
        # Without a source there is nothing to wake up for at the child's end.
        ready, _, _ = select.select(watched, [], [], 0.5 if source in watched else 0.05)
        if lifeline in ready and not os.read(lifeline, 4096):
            processes.end_group(child.pid)
            watched.remove(lifeline)
        if source in ready:
            data = os.read(source, 65536)
            if not data:
                watched.remove(source)
            _send(out, lines.feed(data) if data else lines.flush())
        if child.poll() is None:
            continue
        if ended_at is None:
            processes.end_group(child.pid)
            ended_at = time.time()
        if source not in watched or time.time() > ended_at + PIPE_GRACE_S:
            _send(out, lines.flush())
            return


def _send(out, lines):
    if lines:
        wire.write_all(out, b"".join(wire.encode({"line": wire.text(line)}) for line in lines))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.exit(1)  # nobody listens any more; run() has killed the process
