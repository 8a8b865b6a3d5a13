"""Stands in for `ssh` in front of launch.py, on the head: one of these for each server and worker.

launch.py calls `ssh -o StrictHostKeyChecking=no HOST -p PORT 'export K=V; ... cd DIR; COMMAND'`. This program calls
the real ssh instead, with pinned host keys and the cluster's own key, starts role.py on the node, hands it the order
over stdin (so that no secret and no quoting stands on a command line), and reports what comes back to supervise.py.
It exits with the code of the process. `ssh_proxy.py HOST` alone runs one worker that is told of no others.
Python 3.6 and later, standard library only.
"""

import json
import os
import re
import select
import socket
import subprocess
import sys

import processes
import wire

EXPORT = re.compile(r"export (DMLC_[A-Z_]+)=([^;]*);")


def main():
    host, port, program = parse_arguments(sys.argv[1:])
    launched = dict(EXPORT.findall(program))
    supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    supervisor.connect(os.environ["CLUSTER_SOCKET"])
    supervisor.sendall(wire.encode({"role": launched.get("DMLC_ROLE", "worker"), "host": host}))
    order = json.loads(supervisor.makefile("r", encoding="utf-8").readline())
    order["env"].update(launched)
    here = os.path.dirname(os.path.abspath(__file__))
    remote = "exec %s %s" % (order["python"], os.path.join(here, "role.py"))
    ssh = subprocess.Popen(
        ssh_command(host, port) + [remote],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=processes.die_with_parent,
    )
    ssh.stdin.write(wire.encode(order))
    ssh.stdin.flush()
    ended = relay(ssh.stdout.fileno(), supervisor)
    said = ssh.stderr.read().decode("utf-8", "replace").strip()
    code = ssh.wait()
    if not ended:
        supervisor.sendall(wire.encode({"lost": said or "ssh ended with code %d" % code}))
    return code


def relay(source, supervisor):
    """Pass on what comes from the node until it ends; returns whether that included the exit of the process."""
    ended = False
    lines = wire.LineBuffer(limit=1 << 20)
    while True:
        ready, _, _ = select.select([source, supervisor], [], [])
        if supervisor in ready and not supervisor.recv(4096):
            raise ConnectionError("the supervisor hung up")
        if source in ready:
            data = os.read(source, 65536)
            if not data:
                return ended
            for line in lines.feed(data):
                supervisor.sendall(line + b"\n")
                ended = ended or line.startswith(b'{"exit":')


def parse_arguments(arguments):
    """launch.py's arguments for ssh -> (host, port, program); no program is an empty one."""
    rest = list(arguments)
    port = "22"
    words = []
    while rest:
        word = rest.pop(0)
        if word == "-o":
            rest.pop(0)
        elif word == "-p":
            port = rest.pop(0)
        else:
            words.append(word)
    return words[0], port, "".join(words[1:2])


def ssh_command(host, port="22"):
    """The real ssh, as the head uses it to reach the nodes of its cluster."""
    folder = os.path.join(os.path.expanduser("~"), ".cluster", "ssh")
    options = {
        "IdentityFile": os.path.join(folder, "id_ed25519"),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": os.path.join(folder, "known_hosts"),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": "5",
        "ServerAliveInterval": "2",
        "ServerAliveCountMax": "3",
        "LogLevel": "ERROR",
    }
    command = [os.environ.get("CLUSTER_SSH", "/usr/bin/ssh"), "-F", "/dev/null", "-T", "-p", port]
    for key in sorted(options):
        command += ["-o", "%s=%s" % (key, options[key])]
    return command + [host]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BrokenPipeError, ConnectionError):
        sys.exit(1)  # the supervisor is gone, and with our end ssh and the role end too
