"""A host as ssh sees it, the output of its commands, and the OpenSSH commands that reach it."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from foundation.remote_command import run_program

KEEPALIVE_S = 15
_SPEC = re.compile(r"(?:([A-Za-z_][A-Za-z0-9_.-]*)@)?([A-Za-z0-9][A-Za-z0-9._-]*)(?::([0-9]{1,5}))?")


class Spec(Struct, frozen=True, kw_only=True):
    """A host as a user names it: "[user@]host[:port]". `host` may be an alias of ssh_config."""

    host: str
    user: str | None = None
    port: int | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the ssh command that reaches it."""
        port = ("-p", str(self.port)) if self.port is not None else ()
        return ("ssh", *port, f"{self.user}@{self.host}" if self.user is not None else self.host)

    @property
    def command(self) -> str:
        """Those words as a shell command."""
        return shlex.join(self.words)


class Host(Struct, frozen=True, kw_only=True):
    """A node as ssh sees it. `address` is for the user's machine, `private_ip` for the other nodes.

    spec: "" for an instance of the cluster; for a host of the user's own, its line in the hostfile or in [hosts] names:
    "[user@]host[:port]". Such a host has no instance id; its name is used instead. port: the port of its sshd, which is
    always 22 on instances.
    """

    name: str
    instance_id: str
    address: str
    private_ip: str
    user: str
    is_head: bool
    port: int = 22
    spec: str = ""


class Output(Struct, frozen=True, kw_only=True):
    """The output and the exit code of a finished command."""

    stdout: str
    stderr: str
    exit_code: int

    @property
    def last_line(self) -> str:
        """The last line of stdout, without blanks around it. A user's .bashrc may have printed others before it."""
        return self.stdout.strip().rpartition("\n")[2]


ACTIVATE = """\
ready=$(ls -dt ~/.cluster/env/*/.complete 2>/dev/null | head -n 1)
if [ -n "$ready" ]; then
    folder=${ready%/.complete}
    export PATH="$folder/bin:$PATH"
    for libraries in "$folder"/lib/python3*/site-packages/nvidia/*/lib; do
        [ -d "$libraries" ] && export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    done
fi
"""
"""Puts a node's newest environment first in PATH, with its CUDA libraries."""
RUN_WORDS = 'exec "$@"'


def parse_spec(text: str) -> Spec | None:
    """The host in a line of a hostfile, or None if it is not "[user@]host[:port]". Pure.

    MPICH's "host:2" means two processes, and no sshd has a port below 22.
    """
    match = _SPEC.fullmatch(text)
    if match is None or (match[3] is not None and not 22 <= int(match[3]) < 1 << 16):
        return None
    return Spec(user=match[1], host=match[2], port=int(match[3]) if match[3] is not None else None)


def find_ssh_options(host: Host, *, private_key: Path, known_hosts: Path) -> dict[str, str]:
    """The options of ssh for a node, which override the user's own ssh configuration. Pure.

    HostKeyAlias is the instance id, because the file of pins has instance ids in place of host names (keys.py).
    """
    return {
        "IdentityFile": quote_path(private_key),
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "CertificateFile": "none",
        "PreferredAuthentications": "publickey",
        "UserKnownHostsFile": quote_path(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlias": host.instance_id,
        "CheckHostIP": "no",
        "UpdateHostKeys": "no",
        "VerifyHostKeyDNS": "no",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ControlPath": "none",
        "ConnectTimeout": "10",
        "ServerAliveInterval": str(KEEPALIVE_S),
        "ServerAliveCountMax": "4",
    }


def render_ssh_command(
    host: Host,
    words: Sequence[str] = (),
    *,
    options: Mapping[str, str],
    is_terminal: bool,
) -> tuple[str, ...]:
    """The words of an ssh command that runs `words`, or a shell, on a node with its environment active. Pure.

    A single word is a line for the shell, as with ssh. Several words reach the program unchanged, blanks included.
    options: from find_ssh_options. A host of the user's own is reached with the user's ssh configuration instead.
    is_terminal: whether the command gets a terminal on the node.
    """
    shell = 'exec "${SHELL:-bash}"' + (" -i" if is_terminal else "")  # without a terminal, it reads its commands
    run = {0: shell, 1: 'eval "$1"'}.get(len(words), RUN_WORDS)
    line = run_program("bash", "-lc", ACTIVATE + run, "bash", *words).line()
    words, target = find_ssh_words(host, options=options)
    return (*words, "-t" if is_terminal else "-T", "--", target, line)


def find_ssh_words(host: Host, *, options: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """The first words of an ssh command for a node, and its target. options: as for render_ssh_command. Pure."""
    own = parse_spec(host.spec)
    if own is not None:
        return own.words[:-1], own.words[-1]
    return ("ssh", "-F", "none", *render_options(options), "-l", host.user), host.address


def render_scp_command(
    host: Host, sources: Sequence[str], target: str, *, to_node: bool, options: Mapping[str, str]
) -> tuple[str, ...]:
    """The words of an scp command that copies files and folders to a node, or from it. Pure.

    sources, target: paths on this machine or on the node, as `to_node` says. options: as for render_ssh_command.
    """
    own = parse_spec(host.spec)
    there = f"{host.user}@{host.address}:" if own is None else f"{own.words[-1]}:"
    remote, local = ([target], sources) if to_node else (sources, [target])
    ours = [*map(_local, local)]
    theirs = [there + path for path in remote]
    port = ("-P", str(own.port)) if own is not None and own.port is not None else ()
    first = port if own is not None else ("-F", "none", *render_options(options))
    # -s: by SFTP, which is not the default before OpenSSH 9.0, so that no shell reads the paths.
    return ("scp", "-s", *first, "-r", "-p", "--", *(ours + theirs if to_node else theirs + ours))


def render_ssh_config(alias: str, host: Host, *, options: Mapping[str, str]) -> str:
    """A section of an ssh configuration file, for ssh, scp, rsync and editors. Pure."""
    lines = [f"HostName {host.address}", f"User {host.user}", *(f"{name} {value}" for name, value in options.items())]
    return "\n".join([f"Host {alias}", *(f"    {line}" for line in lines)])


def render_editor_links(alias: str, user: str) -> str:
    """Comments of an ssh configuration file, with the links that open editors on a node. Pure.

    alias: its name in that file. user: the login, whose home folder the editors open.
    """
    target = f"{alias}/root" if user == "root" else f"{alias}/home/{user}"
    links = [f"{editor}://vscode-remote/ssh-remote+{target}" for editor in ("vscode", "cursor")]
    return "\n".join(f"# {link}" for link in (*links, f"zed://ssh/{target}"))


def render_options(options: Mapping[str, str]) -> list[str]:
    """The words that set these options of ssh. Pure."""
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def _local(path: str) -> str:
    """A path on this machine in a form that scp does not misread as HOST:PATH."""
    return path if path.startswith(("/", "./", "../")) else f"./{path}"


def quote_path(path: Path) -> str:
    """A path quoted for an ssh option, where spaces separate words and % starts a token. Pure."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"'
