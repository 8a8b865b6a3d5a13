"""The command lines of the real ssh, with pinned host keys and the cluster's own key."""

import os

from foundation.remote_command import RemoteCommand
from node.programs import CODE_DIR, program_words
from node.protocol import JobHost

# OpenSSH's defaults without post-quantum key exchange: that takes 80 ms of CPU on either side of each connection, to
# protect a job's output and short-lived credentials for decades. (paramiko, on the user's machine, lacks it, too.)
KEY_EXCHANGES = "-sntrup*,mlkem*"
KNOWN_HOSTS = ("known_hosts", "known_hosts_of_others")  # those of the cluster's nodes, and of other hosts
SSH_FAILED = 255


def words_on(host: JobHost, program: str, *words: str) -> list[str]:
    """Returns the command line of a node program on a host of a job, which may have files of its own."""
    return program_words(program, *words, code_dir=CODE_DIR if host.own_host is None else host.own_host.code_dir)


def ssh_command(host: JobHost, remote: RemoteCommand, *, connect_timeout_s: int = 5, patience: int = 3) -> list[str]:
    """Returns the real ssh's words that run `remote` on a host. A host that is not a node has its own user and port.

    patience: how many keep-alives, one every 2 s, may remain without an answer.
    """
    target, port = host.ip, "22"
    if host.own_host is not None:
        target, port = f"{host.own_host.user}@{host.ip}", str(host.own_host.port)
    folder = os.path.join(os.path.expanduser("~"), ".cluster", "ssh")
    options = {
        "IdentityFile": os.path.join(folder, "id_ed25519"),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": " ".join(os.path.join(folder, name) for name in KNOWN_HOSTS),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
        "KexAlgorithms": KEY_EXCHANGES,
        "ConnectTimeout": str(connect_timeout_s),
        "ServerAliveInterval": "2",
        "ServerAliveCountMax": str(patience),
        "LogLevel": "ERROR",
    }
    command = [os.environ.get("CLUSTER_SSH", "/usr/bin/ssh"), "-F", "/dev/null", "-T", "-p", port]
    for key, value in options.items():
        command += ["-o", f"{key}={value}"]
    return [*command, target, remote.line()]
