"""An interactive shell on a node, by OpenSSH's own client, with this cluster's key and pinned host keys alone. Pure."""

from pathlib import Path

from bootstrap.connection import Host

KEEPALIVE_S = 15


def render_ssh_command(host: Host, *, private_key: Path, known_hosts: Path) -> tuple[str, ...]:
    """The words of the ssh command; nothing of the user's own ssh set-up takes part in it. Pure.

    The file of pins has the instance id where a host name would stand (host_keys.py): hence HostKeyAlias.
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
    """A path as one word of an ssh option, in which spaces part words and % begins ssh's own ones. Pure."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"'
