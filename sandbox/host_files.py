"""The files that make a host the one it is: accounts, keys, names, sshd and sudo. Pure text, written by pid1.py."""

import ipaddress
from dataclasses import asdict, dataclass, field
from typing import Any

from sandbox.network import METADATA_ADDRESS

USER = "ubuntu"
USER_UID = 1000
FIRST_HUMAN_UID = 1000  # login.defs: UID_MIN
LAST_HUMAN_UID = 60000  # login.defs: UID_MAX; 65534 is nobody
GROUPS_OF_USER = ("adm", "sudo", "video", "render")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SSHD_CONFIG = f"""\
# First, as in Ubuntu's: of a setting, sshd uses the first value.
Include /etc/ssh/sshd_config.d/*.conf
Port 22
HostKey /etc/ssh/ssh_host_ed25519_key
HostKey /etc/ssh/ssh_host_ecdsa_key
# No PAM: it would count logins and look for a systemd that is not there.
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UseDNS no
# A cluster's tools open many connections side by side.
MaxStartups 100
MaxSessions 100
PrintMotd no
AcceptEnv LANG LC_*
SetEnv PATH={PATH} LANG=C.UTF-8
Subsystem sftp internal-sftp
"""

SUDOERS = f"""\
Defaults env_reset
Defaults secure_path="{PATH}"
root ALL=(ALL:ALL) ALL
%sudo ALL=(ALL:ALL) ALL
@includedir /etc/sudoers.d
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hiding:
    """What of a folder of the machine's system a host does not get to see. All paths are relative to that folder.

    emptied: folders that are there but empty, with their mode. hidden: entries that are not there.
    all_but: folders of which nothing is there but the named entries.
    """

    emptied: tuple[tuple[str, int], ...] = ()
    hidden: tuple[str, ...] = ()
    all_but: tuple[tuple[str, tuple[str, ...]], ...] = ()


# Of /etc, what is a secret of the machine, says who may do what there, or whom it talks to. Of /var, everything but the
# package database and what belongs to it.
HIDING = {
    "etc": Hiding(
        emptied=(("ssh", 0o755), ("sudoers.d", 0o755), ("ssl/private", 0o700), ("cron.d", 0o755), ("netplan", 0o755)),
        hidden=(
            "shadow-", "gshadow-", "passwd-", "group-", "subuid", "subgid", "subuid-", "subgid-", "fstab", "crypttab",
            "krb5.keytab", "NetworkManager", "systemd/network", "wpa_supplicant", "wireguard", "openvpn", "ppp",
            "ipsec.secrets", "ipsec.d", "letsencrypt", "kubernetes", "rancher", "docker", "postgresql", "mysql",
            "exports",
        ),
    ),
    "var": Hiding(
        emptied=(*((name, 0o755) for name in ("cache", "local", "log", "mail", "opt", "spool")), ("tmp", 0o1777)),
        all_but=(
            ("", ("lib",)),
            ("lib", ("dpkg", "apt", "pam", "python", "ucf", "sgml-base", "xml-core", "man-db", "ca-certificates")),
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFile:
    """One file of a host. `directory_mode` is for the folders that have to be made for it, owned by `uid` too.

    `append`: to what the machine's file holds. `link`: a symbolic link, to what `content` says.
    """

    path: str
    content: str
    mode: int = 0o644
    uid: int = 0
    directory_mode: int = 0o755
    append: bool = False
    link: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSpec:
    """All that a host needs to know to boot.

    `root` and `disk` are paths on the machine, `disk_bytes` the size of the root volume, `network` the input of
    `ip -batch` inside the host, `after_boot` a command that is run at each boot when sshd answers. `sshd`: whether
    there is to be one.
    """

    instance_id: str
    hostname: str
    root: str
    disk: str
    disk_bytes: int
    network: str
    files: tuple[HostFile, ...]
    after_boot: tuple[str, ...] = ()
    sshd: bool = True
    hiding: dict[str, Hiding] = field(default_factory=lambda: HIDING)

    def render(self) -> dict[str, Any]:
        """As JSON for pid1.py."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineAccounts:
    """The machine's /etc/passwd and /etc/group, of which the system accounts are kept."""

    passwd: str
    group: str


def render_accounts(machine: MachineAccounts) -> tuple[HostFile, ...]:
    """passwd, group, shadow and gshadow: the machine's system accounts, none of its people, and the user.

    No account has a password. `*` and not `!`, for sshd refuses accounts whose password begins with `!`.
    """
    names, passwd = [], []
    for line in machine.passwd.splitlines():
        fields = line.split(":")
        if len(fields) == 7 and fields[0] != USER and not FIRST_HUMAN_UID <= int(fields[2]) <= LAST_HUMAN_UID:
            passwd.append(line)
            names.append(fields[0])
    passwd.append(f"{USER}:x:{USER_UID}:{USER_UID}:Ubuntu:/home/{USER}:/bin/bash")
    groups, group_names = [], []
    for line in machine.group.splitlines():
        fields = line.split(":")
        if len(fields) == 4 and fields[0] != USER and not FIRST_HUMAN_UID <= int(fields[2]) <= LAST_HUMAN_UID:
            groups.append(":".join([*fields[:3], USER if fields[0] in GROUPS_OF_USER else ""]))
            group_names.append(fields[0])
    groups.append(f"{USER}:x:{USER_UID}:")
    return (
        HostFile(path="/etc/passwd", content=_lines(passwd)),
        HostFile(path="/etc/group", content=_lines(groups)),
        HostFile(path="/etc/shadow", content=_lines(f"{n}:*:19000:0:99999:7:::" for n in [*names, USER]), mode=0o640),
        HostFile(path="/etc/gshadow", content=_lines(f"{n}:*::" for n in [*group_names, USER]), mode=0o640),
    )


def render_home(public_key: str) -> tuple[HostFile, ...]:
    """The user's home, with the launched key pair's public key when there is one."""
    files = [
        HostFile(path=f"/home/{USER}/.profile", uid=USER_UID, directory_mode=0o750,
                 content='[ -n "$BASH_VERSION" ] && [ -f "$HOME/.bashrc" ] && . "$HOME/.bashrc"\n'
                         '[ -d "$HOME/.local/bin" ] && PATH="$HOME/.local/bin:$PATH"\n'),
        HostFile(path=f"/home/{USER}/.bashrc", uid=USER_UID, directory_mode=0o750,
                 content="case $- in *i*) PS1='\\u@\\h:\\w\\$ ' ;; esac\n"),
    ]  # fmt: skip
    if public_key:
        files.append(
            HostFile(
                path=f"/home/{USER}/.ssh/authorized_keys",
                content=public_key.strip() + "\n",
                mode=0o600,
                uid=USER_UID,
                directory_mode=0o700,
            )
        )
    return tuple(files)


def render_identity(hostname: str, private_ip: str, machine_id: str) -> tuple[HostFile, ...]:
    """The host's name, under which it also finds itself: sudo and MXNet's tracker look it up."""
    hosts = f"127.0.0.1 localhost\n{private_ip} {hostname}.ec2.internal {hostname}\n"
    return (
        HostFile(path="/etc/hostname", content=f"{hostname}\n"),
        HostFile(path="/etc/hosts", content=hosts),
        HostFile(path="/etc/machine-id", content=f"{machine_id}\n", mode=0o444),
        # No name server is reachable: a look-up fails at once instead of waiting for the machine's.
        HostFile(path="/etc/resolv.conf", content="# The sandbox has no name server.\n"),
        HostFile(path="/etc/environment", content=f'PATH="{PATH}"\n'),
    )


def render_services(ca_pem: str) -> tuple[HostFile, ...]:
    """sshd, sudo, and the sandbox's certificate authority among those that the host trusts."""
    return (
        HostFile(path="/etc/ssh/sshd_config", content=SSHD_CONFIG),
        HostFile(path="/etc/sudoers", content=SUDOERS, mode=0o440),
        HostFile(path="/etc/sudoers.d/90-cloud-init-users", content=f"{USER} ALL=(ALL) NOPASSWD:ALL\n", mode=0o440),
        HostFile(path="/usr/local/share/ca-certificates/cluster-sandbox.crt", content=ca_pem),
        HostFile(path="/etc/ssl/certs/ca-certificates.crt", content=ca_pem, append=True),
    )


def render_network(private: ipaddress.IPv4Interface, public_ip: str | None, public_range: str, mtu: int) -> str:
    """Input of `ip -batch` for eth0.

    The public address stands on lo, as EC2's is not on the instance's interface either. To other public addresses the
    host speaks from it, as if EC2's gateway had translated it; without one it does not reach them.
    """
    lines = [
        "link set lo up",
        f"link set eth0 up mtu {mtu}",
        f"addr add {private} brd + dev eth0",
        f"route add {METADATA_ADDRESS}/32 dev eth0 src {private.ip}",
    ]
    if public_ip is not None:
        lines += [f"addr add {public_ip}/32 dev lo", f"route add {public_range} dev eth0 src {public_ip}"]
    return _lines(lines)


def _lines(lines: Any) -> str:
    return "".join(f"{line}\n" for line in lines)
