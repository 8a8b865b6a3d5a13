"""The files of a new host: accounts, services, and commands that replace the machine's."""

import ipaddress
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from ec2_sandbox.hosts.network import METADATA_ADDRESS
from ec2_sandbox.hosts.system import Layer

USER = "ubuntu"
USER_UID = 1000
FIRST_HUMAN_UID = 1000  # login.defs: UID_MIN
LAST_HUMAN_UID = 60000  # login.defs: UID_MAX; 65534 is nobody
GROUPS_OF_USER = ("adm", "sudo", "video", "render")

# The files that are the same on every host, as they lie there: always, with-cloud-init and without-cloud-init.
ROOT = Path(__file__).with_name("root")
# Commands by other names. They are copies: where a host's `shutdown` is broken, `poweroff` works.
COPIES = {"poweroff": "shutdown", "halt": "shutdown", "reboot": "shutdown", "mount.nfs4": "mount.nfs"}
# The program of the package docker-systemctl-replacement, which runs the commands of unit files without systemd.
SYSTEMCTL_PROGRAM = "/usr/lib/ec2-sandbox/systemctl3.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFile:
    """One file of a host. `directory_mode`: the mode of missing parent folders, which also belong to `uid`.

    `append`: append to the machine's file. `link`: create a symbolic link to `content`. `each_boot`: write the file
    again at each boot, as cloud-init does with boothooks; if the disk is full, the old file remains.
    """

    path: str
    content: str
    mode: int = 0o644
    uid: int = 0
    directory_mode: int = 0o755
    append: bool = False
    link: bool = False
    each_boot: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSpec:
    """Everything that a host needs to boot. pid1.py reads it as JSON.

    `folder`: the host's folder on the machine (`Folder` in hosts.py). `disk`, `disk_bytes`: the image of the root
    volume, and its size. `image`: the disk of the image that CreateImage has made, or "".
    `packages`: the folder with packages to install. `layers`, `links`: the operating system. The host's ids 0 to
    `uids` - 1 are the machine's ids from `first_uid`, or the daemon's ids if that is None. `cgroup`: the host's control
    group, or "". `dmi`: the files of /sys/class/dmi/id. `outer_cgroup`: the daemon's control group. `fuse`: whether the
    machine supports FUSE. `network`: the input of `ip -batch` inside the host. `after_boot`: a command to run at each
    boot once sshd answers. `sshd`: whether to start sshd.
    """

    instance_id: str
    hostname: str
    folder: str
    disk: str
    disk_bytes: int
    image: str
    packages: str
    layers: tuple[Layer, ...]
    links: tuple[tuple[str, str], ...]
    first_uid: int | None
    uids: int
    cgroup: str
    dmi: Mapping[str, str]
    outer_cgroup: str
    fuse: bool
    network: str
    files: tuple[HostFile, ...]
    after_boot: tuple[str, ...] = ()
    sshd: bool = True


def render_dmi(instance_id: str, instance_type: str) -> dict[str, str]:
    """Returns what an instance finds in /sys/class/dmi/id. Pure.

    Programs find out by it that they run on EC2, and that IMDS is version 2:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html
    """
    number = "ec2" + str(uuid.uuid5(uuid.NAMESPACE_URL, instance_id))[3:]
    return {
        **dict.fromkeys(("sys_vendor", "board_vendor", "bios_vendor", "chassis_vendor"), "Amazon EC2"),
        "product_name": instance_type,
        "bios_version": "1.0",
        "bios_date": "10/16/2017",
        "chassis_type": "1",
        **dict.fromkeys(("product_uuid", "product_serial"), number),
        "board_asset_tag": instance_id,
        "chassis_asset_tag": "Amazon EC2",
    }


def render_accounts(passwd: str, group: str) -> tuple[HostFile, ...]:
    """Returns passwd, group, shadow, gshadow, subuid and subgid, without the machine's own users.

    They have the machine's system accounts and the user. passwd, group: the machine's files. No account has a password;
    shadow has `*`, because sshd refuses accounts with `!`.
    """
    users = [":".join(fields) for fields in _system_entries(passwd, 7)]
    groups = [
        ":".join([*fields[:3], USER if fields[0] in GROUPS_OF_USER else ""]) for fields in _system_entries(group, 4)
    ]
    users.append(f"{USER}:x:{USER_UID}:{USER_UID}:Ubuntu:/home/{USER}:/bin/bash")
    groups.append(f"{USER}:x:{USER_UID}:")
    shadow, gshadow = (
        [f"{line.partition(':')[0]}:*:{more}" for line in lines]
        for lines, more in ((users, "19000:0:99999:7:::"), (groups, ":"))
    )
    return (
        HostFile(path="/etc/passwd", content=_lines(users)),
        HostFile(path="/etc/group", content=_lines(groups)),
        HostFile(path="/etc/shadow", content=_lines(shadow), mode=0o640),
        HostFile(path="/etc/gshadow", content=_lines(gshadow), mode=0o640),
        # The ids for rootless containers, as useradd assigns them.
        *(HostFile(path=f"/etc/{name}", content=f"{USER}:100000:65536\n") for name in ("subuid", "subgid")),
    )


def _system_entries(text: str, length: int) -> Iterator[list[str]]:
    """Yields the entries of system accounts or groups."""
    for fields in (line.split(":") for line in text.splitlines()):
        is_whole = len(fields) == length and fields[0] != USER
        if is_whole and not FIRST_HUMAN_UID <= int(fields[2]) <= LAST_HUMAN_UID:
            yield fields


def render_home(public_key: str) -> tuple[HostFile, ...]:
    """Returns the files of the user's home, with the public key of the launch's key pair if it has one."""
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


def render_identity(full_name: str, private_ip: str, name_server: str, machine_id: str) -> tuple[HostFile, ...]:
    """Returns the files with the host's name and its name server.

    The host's own name resolves without the name server: sudo looks it up, even if the network is cut, and
    `hostname -f` must print the full name, whatever the machine's nsswitch.conf contains.
    """
    hostname, _, domain = full_name.partition(".")
    hosts = f"127.0.0.1 localhost\n{private_ip} {full_name} {hostname}\n"
    return (
        HostFile(path="/etc/hostname", content=f"{hostname}\n"),
        HostFile(path="/etc/hosts", content=hosts),
        HostFile(path="/etc/machine-id", content=f"{machine_id}\n", mode=0o444),
        HostFile(path="/etc/resolv.conf", content=f"nameserver {name_server}\nsearch {domain}\n"),
    )


def render_trust(ca_pem: str) -> tuple[HostFile, ...]:
    """Returns the certificate of the sandbox's authority, which the host trusts."""
    return (
        HostFile(path="/usr/local/share/ca-certificates/ec2-sandbox.crt", content=ca_pem),
        HostFile(path="/etc/ssl/certs/ca-certificates.crt", content=ca_pem, append=True),
    )


def render_network(
    private: ipaddress.IPv4Interface, public_ip: str | None, public_range: str, machine: str, mtu: int
) -> str:
    """Returns the input of `ip -batch` that sets up eth0.

    The public address is on lo, because on EC2, too, it is not on the instance's interface. It is the source address of
    packets to other public addresses, and from other VPCs to `machine`, which is outside them, as if EC2's gateway
    translated it. Without one, the host cannot reach them. The metric makes the unreachable route the last choice.
    """
    lines = [
        "link set lo up",
        f"link set eth0 up mtu {mtu}",
        f"addr add {private} brd + dev eth0",
        f"route add default via {private.network[1]} dev eth0",
        f"route add {METADATA_ADDRESS}/32 dev eth0 src {private.ip}",
        f"route add unreachable {public_range} metric 9999",
    ]
    if public_ip is not None:
        outside = [public_range] if ipaddress.ip_address(machine) in private.network else [public_range, machine]
        lines.append(f"addr add {public_ip}/32 dev lo")
        lines += [f"route add {destination} dev eth0 src {public_ip}" for destination in outside]
    return _lines(lines)


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def read_root(name: str) -> Iterator[HostFile]:
    """Yields the files of a folder in ROOT. Scripts are programs, and sudo refuses rules that others can write."""
    for file in sorted(file for file in (ROOT / name).rglob("*") if file.is_file()):
        content, path = file.read_text(), f"/{file.relative_to(ROOT / name)}"
        mode = 0o755 if content.startswith("#!") else 0o440 if "sudoers" in path else 0o644
        yield HostFile(path=path, content=content, mode=mode)


def read_commands() -> tuple[HostFile, ...]:
    """Returns commands and settings that replace the machine's, on every host."""
    files = {file.path: file for file in read_root("always")}
    copies = (replace(files[f"/usr/sbin/{name}"], path=f"/usr/sbin/{copy}") for copy, name in COPIES.items())
    return (
        *files.values(),
        *copies,
        HostFile(path=SYSTEMCTL_PROGRAM, content=(resources.files("systemctl2") / "systemctl3.py").read_text()),
    )
