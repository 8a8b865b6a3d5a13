"""Runs one job from the head: starts MXNet's launch.py, follows every process of it, and ends all of them.

The job comes as one line on stdin:
    {"job": id, "python": path, "workers": n, "servers": s, "start_timeout_s": seconds,
     "hosts": [{"name": "node-0", "ip": "10.0.0.4"}, ...], the head first,
     "command": [...], "cwd": folder, "env": {...}, "secrets": {...},
     "nodes_credentials": true for secrets that are this instance's own,
     "setup": digest of the set-up commands whose exports the processes get, or null}
The end of stdin, {"stop": true}, SIGTERM and SIGINT stop it. stdout gets {"line": ...}, {"alive": true} every few
seconds, at last {"result": {"exit_code": c, "reason": text or null, "left": {"node-1": [[pid, words], ...]}}}

What launch.py lacks is here: one process that fails ends the job, everywhere; the exit code is that process's; and at
the end every host is searched for what is left. A job without servers is one worker on the head, without launch.py:
that would start a scheduler, which waits for ever for a worker that needs none.

Python 3.6 and later, standard library only.
"""

import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time

import ending
import instance_credentials
import processes
import wire

END_GRACE_S = 10.0  # for servers and scheduler, once all workers are done
LAUNCHER_GRACE_S = 5.0  # for workers to report, once launch.py, the scheduler or a server has ended
ALIVE_EVERY_S = 2.0
STOPPED = 130


class Role(object):
    """One process of the job, as its connection tells of it."""

    def __init__(self, connection):
        self.connection = connection
        self.lines = wire.LineBuffer(limit=1 << 20)
        self.role = None
        self.host = None
        self.tag = None
        self.pid = None
        self.exit_code = None


class Stop(Exception):
    """The job ends now: with this exit code, for this reason (None: it went well)."""

    def __init__(self, exit_code, reason):
        super(Stop, self).__init__(reason)
        self.exit_code = exit_code
        self.reason = reason


class Supervisor(object):
    """One job, from start to end."""

    def __init__(self, job, folder):
        self.job = job
        self.folder = folder
        self.names = {host["ip"]: host["name"] for host in job["hosts"]}
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.roles = []
        self.launcher = None
        self.launcher_runs = False
        self.launcher_lines = wire.LineBuffer()
        self.deadline = time.time() + job["start_timeout_s"]
        self.on_deadline = self.start_timed_out

    # -- start ---------------------------------------------------------------------------------------------------

    def start(self):
        """Listen for the roles, then start launch.py."""
        path = os.path.join(self.folder, "socket")
        self.listener.bind(path)
        self.listener.listen(1024)
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self.read_control)
        hostfile = os.path.join(self.folder, "hosts")
        with open(hostfile, "w") as stream:
            stream.write("".join(host["ip"] + "\n" for host in self.job["hosts"]))
        tools = os.path.join(self.folder, "bin")
        os.mkdir(tools)
        here = os.path.dirname(os.path.abspath(__file__))
        python = self.job["python"]
        with open(os.path.join(tools, "ssh"), "w") as stream:
            stream.write('#!/bin/sh\nexec %s %s "$@"\n' % (python, os.path.join(here, "ssh_proxy.py")))
        os.chmod(os.path.join(tools, "ssh"), 0o700)
        head = self.job["hosts"][0]["ip"]
        if self.job["servers"]:
            command = [python, os.path.join(here, "launch.py"), head]
            command += ["-n", str(self.job["workers"]), "-s", str(self.job["servers"]), "-H", hostfile]
            command += ["--launcher", "ssh", python, os.path.join(here, "role.py"), "scheduler"]
        else:
            command = [python, os.path.join(here, "ssh_proxy.py"), head]
        env = {key: os.environ[key] for key in ("HOME", "USER", "LOGNAME", "LANG") if key in os.environ}
        env["PATH"] = tools + ":/usr/local/bin:/usr/bin:/bin"
        env["CLUSTER_SOCKET"] = path
        # launch.py and the scheduler need no secrets, and do not get them.
        env["CLUSTER_ORDER"] = json.dumps(self.order(self.names[self.job["hosts"][0]["ip"]], {}))
        env[processes.JOB_VARIABLE] = self.job["job"]
        self.launcher = processes.start(command, env, self.folder)
        self.launcher_runs = True
        self.selector.register(self.launcher.stdout.fileno(), selectors.EVENT_READ, self.read_launcher)

    def order(self, host, secrets):
        """What role.py needs to know to run a process of the job."""
        return {
            "job": self.job["job"],
            "python": self.job["python"],
            "command": self.job["command"],
            "cwd": self.job["cwd"],
            "env": dict(self.job["env"], **secrets),
            "setup": self.job["setup"],
            "host": host,
        }

    # -- what happens --------------------------------------------------------------------------------------------

    def run(self):
        """Follow the job; raises Stop at its end."""
        told = time.time()
        while True:
            for key, _ in self.selector.select(timeout=0.2):
                key.data(key.fileobj)
            if time.time() > told + ALIVE_EVERY_S:
                told = time.time()
                tell({"alive": True})
            if self.launcher_runs and self.launcher.poll() is not None:
                self.launcher_runs = False
                self.deadline = time.time() + LAUNCHER_GRACE_S
                self.on_deadline = self.launcher_ended
            if self.deadline is not None and time.time() > self.deadline:
                self.on_deadline()

    def accept(self, listener):
        connection, _ = listener.accept()
        role = Role(connection)
        self.selector.register(connection, selectors.EVENT_READ, lambda _: self.read_role(role))

    def read_role(self, role):
        try:
            data = role.connection.recv(65536)
        except ConnectionError:  # killed before it had read what we sent
            data = b""
        for line in role.lines.feed(data):
            self.hear(role, json.loads(line.decode("utf-8")))
        if not data:
            self.selector.unregister(role.connection)
            role.connection.close()
            if role.role is not None and role.exit_code is None:
                raise Stop(1, "%s: the connection to it was lost" % role.tag)

    def hear(self, role, message):
        """One message of a role."""
        if "line" in message:
            tell({"line": "[%s] %s" % (role.tag, message["line"])})
        elif "role" in message:
            self.introduce(role, message)
        elif "started" in message:
            role.pid = message["started"]
            self.check_started()
        elif "lost" in message:
            raise Stop(1, "%s: ssh to it failed: %s" % (role.tag, message["lost"]))
        elif "exit" in message:
            role.exit_code = message["exit"]
            self.check_exit(role, message["signal"])

    def introduce(self, role, message):
        role.role = message["role"]
        role.host = self.names.get(message["host"], message["host"])
        before = sum(1 for other in self.roles if (other.role, other.host) == (role.role, role.host))
        role.tag = "%s %s%s" % (role.host, role.role, "" if not before else ".%d" % before)
        self.roles.append(role)
        if role.role != "scheduler":
            try:
                role.connection.sendall(wire.encode(self.order(role.host, self.job["secrets"])))
            except ConnectionError as error:
                raise Stop(1, "%s: the connection to it was lost" % role.tag) from error

    def check_started(self):
        started = [role for role in self.roles if role.pid is not None]
        if len(started) == self.job["workers"] + self.job["servers"] + bool(self.job["servers"]):
            self.deadline = None

    def check_exit(self, role, number):
        if role.exit_code != 0:
            what = "was killed by signal %d" % number if number else "ended with exit code %d" % role.exit_code
            raise Stop(role.exit_code, "%s (process %d) %s" % (role.tag, role.pid or 0, what))
        done = [r for r in self.roles if r.role == "worker" and r.exit_code == 0]
        if len(done) < self.job["workers"]:
            if role.role != "worker":
                # At the end of a good job it can be a moment ahead of the last worker.
                self.deadline = time.time() + LAUNCHER_GRACE_S
                self.on_deadline = lambda: self.ended_early(role.tag)
            return
        if all(r.exit_code is not None for r in self.roles):
            raise Stop(0, None)
        self.deadline = time.time() + END_GRACE_S
        self.on_deadline = self.end_timed_out

    def read_launcher(self, descriptor):
        data = os.read(descriptor, 65536)
        for line in self.launcher_lines.feed(data) if data else self.launcher_lines.flush():
            tell({"line": "[%s launch.py] %s" % (self.job["hosts"][0]["name"], wire.text(line))})
        if not data:
            self.selector.unregister(descriptor)

    def read_control(self, descriptor):
        data = os.read(descriptor, 4096)
        if not data or b'"stop"' in data:
            raise Stop(STOPPED, "stopped" if data else "stopped: the connection to the user's machine ended")

    # -- deadlines -----------------------------------------------------------------------------------------------

    def start_timed_out(self):
        here = ["%s on %s" % (role.role, role.host) for role in self.roles if role.pid is not None]
        raise Stop(
            1,
            "the job did not start within %d s: of its scheduler, %d servers and %d workers there are only: %s"
            % (self.job["start_timeout_s"], self.job["servers"], self.job["workers"], ", ".join(here) or "none"),
        )

    def end_timed_out(self):
        raise Stop(0, None)  # the workers have done their work; what lingers is ended

    def launcher_ended(self):
        if all(role.exit_code == 0 for role in self.roles if role.role == "worker") and self.roles:
            raise Stop(0, None)
        self.ended_early("launch.py (exit code %s)" % self.launcher.poll())

    def ended_early(self, what):
        raise Stop(1, "%s ended before the workers did" % what)

    # -- end -----------------------------------------------------------------------------------------------------

    def end(self):
        """End everything everywhere; returns what does not end: {host name: [[pid, command line], ...]}."""
        for role in self.roles:
            role.connection.close()  # its proxy hangs up, and its role.py kills the process
        self.listener.close()
        left = ending.end_on_all_hosts(self.job)
        if self.launcher is not None:
            self.launcher.wait()
        return left


def tell(message):
    wire.write_all(sys.stdout.fileno(), wire.encode(message))


def raise_stop(number, _frame):
    raise Stop(STOPPED, "stopped by signal %d" % number)


def main():
    job = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    head = job["hosts"][0]["name"]
    folder = os.path.join(os.path.expanduser("~"), ".cluster", "jobs", job["job"])
    try:
        for line in instance_credentials.take(job):
            tell({"line": "[%s] %s" % (head, line)})
        os.makedirs(folder, mode=0o700)
    except OSError as error:
        return tell_result(1, "%s: %s" % (head, error), {})
    signal.signal(signal.SIGTERM, raise_stop)
    signal.signal(signal.SIGINT, raise_stop)
    supervisor = Supervisor(job, folder)
    try:
        supervisor.start()
        supervisor.run()
    except Stop as stop:
        exit_code, reason = stop.exit_code, stop.reason
    except BrokenPipeError:
        exit_code, reason = STOPPED, "stopped: nobody reads its output any more"
    except OSError as error:  # such as a full disk
        exit_code, reason = 1, "%s: %s" % (head, error)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        left = supervisor.end()
        shutil.rmtree(folder)
    return tell_result(exit_code, reason, left)


def tell_result(exit_code, reason, left):
    """The last thing that is said; returns the exit code."""
    tell({"result": {"exit_code": exit_code, "reason": reason, "left": left}})
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
