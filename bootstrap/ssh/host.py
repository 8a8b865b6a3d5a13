"""A host as ssh sees it, the output of a command there, and the ssh command for a shell."""

from dataclasses import dataclass
from pathlib import Path

KEEPALIVE_S = 15


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A node as ssh sees it. `address` is where the user's machine reaches it, `private_ip` where the others do.

    spec: "" for a node of the cluster; for a host of the user's own, as named in the hostfile: "[user@]host[:port]".
    Such a host has no instance id; its name is used instead. port: of its sshd; on nodes it is always 22.
    """

    name: str
    instance_id: str
    address: str
    private_ip: str
    user: str
    is_head: bool
    port: int = 22
    spec: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What a finished command printed."""

    stdout: str
    stderr: str
    exit_code: int


def render_ssh_command(host: Host, *, private_key: Path, known_hosts: Path) -> tuple[str, ...]:
    """The words of the ssh command; the user's own ssh configuration is not used. Pure.

    The file of pins has the instance id where a host name would stand (keys.py): hence HostKeyAlias.
    """
    options = {
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
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ("ssh", "-F", "none", *words, "-l", host.user, "--", host.address)


def quote_path(path: Path) -> str:
    """A path quoted for an ssh option, where spaces separate words and % starts a token. Pure."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"'
