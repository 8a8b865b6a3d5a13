"""The files of a new host: accounts, services, and commands that replace the machine's."""

import ipaddress
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

from ec2_sandbox.hosts.network import METADATA_ADDRESS
from ec2_sandbox.hosts.system import Layer

USER = "ubuntu"
USER_UID = 1000
FIRST_HUMAN_UID = 1000  # login.defs: UID_MIN
LAST_HUMAN_UID = 60000  # login.defs: UID_MAX; 65534 is nobody
GROUPS_OF_USER = ("adm", "sudo", "video", "render")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SSHD_CONFIG = f"""\
# First, as in Ubuntu: sshd uses the first value of a setting.
Include /etc/ssh/sshd_config.d/*.conf
Port 22
HostKey /etc/ssh/ssh_host_ed25519_key
HostKey /etc/ssh/ssh_host_ecdsa_key
# Without PAM, sshd would refuse accounts that have no password, such as those that useradd creates.
UsePAM yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UseDNS no
# The last one has the keys of EC2 Instance Connect.
AuthorizedKeysFile .ssh/authorized_keys .ssh/authorized_keys2 /run/ec2-instance-connect/%u
PrintMotd no
AcceptEnv LANG LC_*
SetEnv PATH={PATH} LANG=C.UTF-8
Subsystem sftp internal-sftp
"""

# The machine's would count logins and look for systemd.
PAM_SSHD = """\
auth required pam_deny.so
account required pam_permit.so
session required pam_permit.so
"""

SUDOERS = f"""\
Defaults env_reset
Defaults secure_path="{PATH}"
root ALL=(ALL:ALL) ALL
%sudo ALL=(ALL:ALL) ALL
@includedir /etc/sudoers.d
"""

# systemd(1), "Signals": SIGRTMIN+4 powers off, SIGRTMIN+5 reboots; 34 is the C library's SIGRTMIN (signal(7)).
POWER_OFF_SIGNAL = 38
REBOOT_SIGNAL = 39

COMMAND = f"""\
#!/bin/sh
# Ends this host: shutdown [-h|-P|-H|-r] [-c] [now|+MINUTES] [MESSAGE], poweroff, halt, reboot.
name=${{0##*/}}
signal={POWER_OFF_SIGNAL}
[ "$name" != reboot ] || signal={REBOOT_SIGNAL}
waiting=/run/shutdown.pid
when= cancel=
for word in "$@"; do
    case "$word" in
    -r | --reboot) signal={REBOOT_SIGNAL} ;;
    -h | -P | -H | --halt | --poweroff) signal={POWER_OFF_SIGNAL} ;;
    -c) cancel=yes ;;
    -*) ;;
    *) [ -n "$when" ] || when=$word ;;
    esac
done
if [ "$(id -u)" != 0 ]; then
    echo "$name: must be root" >&2
    exit 1
fi
if [ -e "$waiting" ]; then
    kill -- "-$(cat "$waiting")" 2>/dev/null
    rm -f "$waiting"
fi
[ -z "$cancel" ] || exit 0
[ "$name" = shutdown ] || when=now
case "${{when:-+1}}" in
now | +0) exec kill -"$signal" 1 ;;
+[0-9]*) seconds=$((${{when:-+1}} * 60)) ;;
*)
    echo "$name: cannot read the time $when" >&2
    exit 1
    ;;
esac
setsid sh -c "echo \\$\\$ >$waiting; sleep $seconds; kill -$signal 1" </dev/null >/dev/null 2>&1 &
echo "Shutdown scheduled for $(date -d "+$seconds seconds"), use 'shutdown -c' to cancel."
"""

MOUNT_EXT4 = """\
#!/bin/sh
# mount(8) calls it for ext4: mount.ext4 DEVICE FOLDER [-sfnv] [-o OPTIONS]. The kernel lets only the machine's root
# mount ext4, so this host does it with FUSE. umount returns before fuse2fs has closed the device.
device=$1 folder=$2
shift 2
options=rw
while getopts sfnvN:o: option; do [ "$option" != o ] || options=$OPTARG; done
if ! command -v fuse2fs >/dev/null; then
    echo "mount.ext4: the hosts need fuse2fs, and sshfs to share it: ec2-sandbox install fuse2fs sshfs" >&2
    exit 1
fi
tries=0
while pgrep -f "^fuse2fs .* $device " >/dev/null && [ $((tries += 1)) -lt 100 ]; do sleep 0.1; done
exec fuse2fs -o "allow_other,default_permissions,$options" "$device" "$folder"
"""

NFS_PORT = 2049
MOUNT_NFS = f"""\
#!/bin/sh
# mount(8) calls it for NFS: mount.nfs HOST:FOLDER FOLDER [-sfnv] [-o OPTIONS]. A host cannot load the kernel's NFS, so
# it mounts the folder with FUSE, by SFTP without ssh; `exportfs` serves it. All files belong to the image's user.
source=$1 folder=$2
shift 2
options=rw mode=rw
while getopts sfnvN:o: option; do [ "$option" != o ] || options=$OPTARG; done
case ",$options," in *,ro,*) mode=ro ;; esac
if ! command -v sshfs >/dev/null; then
    echo "mount.nfs: the sandbox's hosts need sshfs: ec2-sandbox install sshfs" >&2
    exit 1
fi
uncached=dir_cache=no,attr_timeout=0,entry_timeout=0,negative_timeout=0
exec sshfs -o "directport={NFS_PORT},allow_other,default_permissions,nosuid,nodev,uid=1000,gid=1000,$uncached,$mode" \\
    "$source" "$folder"
"""
EXPORTFS = f"""\
#!/usr/bin/python3 -Es
# exportfs -ra: serves this host's folders to the addresses in /etc/exports.d, by SFTP without ssh. See mount.nfs.
import glob, os, socket, sys


def find_clients():
    lines = [line for path in glob.glob("/etc/exports.d/*.exports") for line in open(path)]
    return {{word.partition("(")[0] for line in lines for word in line.split()[1:]}}


listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    listener.bind(("", {NFS_PORT}))
except OSError:  # it serves already, and reads the exports for each client
    sys.exit()
listener.listen(64)
if os.fork():
    sys.exit()
os.setsid()
for number in range(3):
    os.dup2(os.open(os.devnull, os.O_RDWR), number)
while True:
    client, (address, _) = listener.accept()
    if address in find_clients() and os.fork() == 0:
        if os.fork() == 0:
            os.dup2(client.fileno(), 0)
            os.dup2(client.fileno(), 1)
            os.setgid(1000)
            os.setuid(1000)
            os.execv("/usr/lib/openssh/sftp-server", ["sftp-server"])
        os._exit(0)
    client.close()
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
"""

# The machine's own would find a container, in which cloud-init does not read /sys/class/dmi/id.
DETECT_VIRT = """\
#!/bin/sh
found=amazon
for word; do case $word in --container | -c) found=none ;; --quiet | -q) exec >/dev/null ;; esac; done
echo "$found"
[ "$found" != none ]
"""


# The program of the package docker-systemctl-replacement, which runs the commands of unit files without systemd. It
# reads the files each time, and would check all of them for daemon-reload. Process 1 starts sshd again (pid1.py).
SYSTEMCTL_PROGRAM = "/usr/lib/ec2-sandbox/systemctl3.py"
SYSTEMCTL = f"""\
#!/bin/sh
verb= unit=
for word; do
    case "$word" in
    -*) ;;
    *) if [ -z "$verb" ]; then verb=$word; elif [ -z "$unit" ]; then unit=${{word%.service}}; fi ;;
    esac
done
# The program writes to /run even to answer a question.
[ "$(id -u)" = 0 ] || exec sudo -n "$0" "$@"
case "$verb $unit" in
daemon-reload* | daemon-reexec*) exit 0 ;;
"reboot " | "poweroff " | "halt ") exec "/usr/sbin/$verb" ;;
*" ssh" | *" sshd")
    case $verb in
    restart | try-restart | reload | reload-or-restart | try-reload-or-restart) exec pkill -HUP -P 1 -x sshd ;;
    start | enable | is-active | is-enabled | status) exec pgrep -a -P 1 -x sshd ;;
    esac
    ;;
*.timer | *.socket | *.mount | *.path)
    echo "systemctl: the sandbox's hosts have no systemd: only services can be started, not $unit" >&2
    exit 1
    ;;
esac
exec /usr/bin/python3 {SYSTEMCTL_PROGRAM} "$@"
"""


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
        HostFile(path="/etc/environment", content=f'PATH="{PATH}"\n'),
    )


def render_services(ca_pem: str) -> tuple[HostFile, ...]:
    """Returns the settings of sshd and sudo, and the certificate of the sandbox's authority, which the host trusts."""
    return (
        HostFile(path="/etc/ssh/sshd_config", content=SSHD_CONFIG),
        HostFile(path="/etc/ssh/sshd_config.d/60-cloudimg-settings.conf", content="PasswordAuthentication no\n"),
        HostFile(path="/etc/pam.d/sshd", content=PAM_SSHD),
        HostFile(path="/etc/sudoers", content=SUDOERS, mode=0o440),
        HostFile(path="/etc/sudoers.d/90-cloud-init-users", content=f"{USER} ALL=(ALL) NOPASSWD:ALL\n", mode=0o440),
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


def render_commands() -> tuple[HostFile, ...]:
    """Returns commands that replace the machine's: shutdown and its kin, mounts of volumes and NFS, and systemd's."""
    files = dict.fromkeys(("shutdown", "poweroff", "halt", "reboot"), COMMAND)
    files |= {"mount.ext4": MOUNT_EXT4, "mount.nfs": MOUNT_NFS, "mount.nfs4": MOUNT_NFS, "exportfs": EXPORTFS}
    commands = {f"sbin/{name}": content for name, content in files.items()}
    commands |= {"bin/systemd-detect-virt": DETECT_VIRT, "bin/systemctl": SYSTEMCTL}
    return (
        *(HostFile(path=f"/usr/{name}", content=content, mode=0o755) for name, content in commands.items()),
        HostFile(path=SYSTEMCTL_PROGRAM, content=(resources.files("systemctl2") / "systemctl3.py").read_text()),
    )
