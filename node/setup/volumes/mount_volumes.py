"""Mounts volumes on one node, and serves them to other nodes: carries out the steps of bootstrap/volumes, as root.

It arrives over stdin, followed by one line of JSON for each step, and ends with its stdin:

    {"step": a function of STEPS, ...its arguments}      answered by {"result": ...} or {"error": text}
    {"alive": true}                                      sent by this program every two seconds

It notes its mounts in /run, which a reboot empties together with the mounts. Everything that may wait for a dead server
runs in a child process with a time limit. Keys and passwords stay in /run, in memory. The private key with which a node
logs in to the node that serves a volume is created on that first node and never leaves it.
"""

import fcntl
import glob
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from node.setup.messages import stay_alive, tell
from node.setup.volumes import volume_probe
from node.setup.volumes.volume_probe import DISKS, NOTES, RUN

LOCK = os.path.join(RUN, "lock")
EXPORTS = os.path.join(RUN, "exports")  # the only folder of this node that sshd shows to other nodes
SSHD_CONFIG = os.path.join(RUN, "sshd_config")
SSHD_LOG = os.path.join(RUN, "sshd.log")
KNOWN_HOSTS = os.path.join(RUN, "known_hosts")
KEY = os.path.join(RUN, "key")
NFS_EXPORTS = "/etc/exports.d/cluster-volumes.exports"
COMMANDS = ("mount.nfs4", "mount.lustre", "sshfs", "s3fs", "mount-s3", "exportfs", "sshd", "mkfs.ext4", "apt-get")
SBIN = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
BLANK_BYTES = 1 << 20
NOTHING_FOUND = 2  # an exit code of blkid
LONG_S = 600.0
SHORT_S = 20.0
MOUNT_S = 30.0
UNMOUNT_S = 5.0
LAST_LINES = 5


class Failed(Exception):
    """A step failed; the text is the reason."""


def call(words: Sequence[str], limit_s: float = SHORT_S, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Runs a command. Returns (exit code, output). Raises Failed if it cannot run or takes more than limit_s seconds.

    A daemon that the command starts may keep its output open, so the output goes to a file without a name.
    """
    environment = {**os.environ, "PATH": SBIN, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", **(env or {})}
    with open(RUN, "rb", opener=_open_unnamed) as output:
        try:
            child = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:
            raise Failed(f"{words[0]}: {error.strerror or error}") from None
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            raise Failed(f"{os.path.basename(words[0])} did not end within {limit_s:g} s") from None
        output.seek(0)
        return child.returncode, output.read().decode("utf-8", "replace")


def _open_unnamed(folder: str, _flags: int) -> int:
    return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)


def run(words: Sequence[str], limit_s: float = SHORT_S, env: Mapping[str, str] | None = None) -> str:
    """Runs a command. Returns its output. Raises Failed with its last lines if it fails."""
    code, said = call(words, limit_s, env)
    if code != 0:
        last = "; ".join(line.strip() for line in said.splitlines()[-LAST_LINES:] if line.strip())
        raise Failed(f"{os.path.basename(words[0])} ended with exit code {code}: {last or 'without a message'}")
    return said


# -- facts -------------------------------------------------------------------------------------------------------------


def look(mounts: Sequence[str], volume_ids: Sequence[str]) -> dict[str, Any]:
    """Gathers the facts about this node. mounts: the folders that matter; volume_ids: the EBS volumes that matter."""
    noted = read_notes()
    user = find_user()
    return {
        "commands": [name for name in COMMANDS if shutil.which(name, path=SBIN)],
        "nfs": has_filesystem("nfs4", "nfs"),
        "nfsd": has_filesystem("nfsd", "nfsd"),
        "lustre": has_filesystem("lustre", "lustre"),
        "fuse": is_device("/dev/fuse"),
        "uid": user.pw_uid,
        "gid": user.pw_gid,
        "user": user.pw_name,
        "host_key": read_host_key(),
        "noted": noted,
        "mounted": {path: volume_probe.find_mount(path) for path in set(mounts) | set(noted)},
        "dead": {path: why for path, why in ((one, volume_probe.probe(one)) for one in noted) if why is not None},
        "disks": [path for path in glob.glob(os.path.join(DISKS, "*")) if volume_probe.find_mount(path) is not None],
        "devices": {volume_id: find_device(volume_id, "") for volume_id in volume_ids},
    }


def has_filesystem(name: str, module: str) -> bool:
    """Whether the kernel has a file system. Loads its module if necessary."""
    if _is_known(name):
        return True
    if shutil.which("modprobe", path=SBIN):
        call(["modprobe", "-q", module])
    return _is_known(name)


def _is_known(name: str) -> bool:
    with open("/proc/filesystems") as stream:
        return any(line.split()[-1:] == [name] for line in stream)


def is_device(path: str) -> bool:
    """Whether a path is a character device."""
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def find_user() -> pwd.struct_passwd:
    """The user who logs in to this node, whose jobs use the volumes."""
    return pwd.getpwuid(int(os.environ.get("SUDO_UID") or os.getuid()))


def read_host_key() -> str:
    """This node's own ssh host key, "type base64"; "" if it has none."""
    for kind in ("ed25519", "ecdsa", "rsa"):
        found = _read(f"/etc/ssh/ssh_host_{kind}_key.pub")
        if found:
            return " ".join(found.split()[:2])
    return ""


def read_notes() -> dict[str, Any]:
    """The mounts that this program has made since the last boot: {mount: entry}."""
    found: dict[str, Any] = json.loads(_read(NOTES) or "{}")
    return found


def note(mount: str, entry: Mapping[str, Any] | None) -> None:
    """Notes a mount. With None as its entry, forgets it."""
    noted = read_notes()
    noted.pop(mount, None)
    if entry is not None:
        noted[mount] = entry
    write(NOTES, json.dumps(noted), 0o644)  # the programs that run a job read it, too


def write(path: str, text: str, mode: int) -> None:
    """Writes or replaces a file, atomically."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    fresh = path + ".new"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(text)
    os.rename(fresh, path)


# -- packages ----------------------------------------------------------------------------------------------------------


def install(packages: Sequence[str]) -> None:
    """Installs packages of Debian or Ubuntu."""
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    run([*apt, "update"], LONG_S)
    run([*apt, "install", "-y", "--no-install-recommends", *packages], LONG_S)


# -- the disk ----------------------------------------------------------------------------------------------------------


def find_device(volume_id: str, device: str) -> str | None:
    """The path of an EBS volume's device; None if it does not exist. device: the device name of the attachment, or "".

    https://docs.aws.amazon.com/ebs/latest/userguide/identify-nvme-ebs-device.html
    """
    serial = volume_id.replace("-", "")
    names = [f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{serial}"]
    if device:  # Xen's names, on instance types without NVMe
        names += [device, device.replace("/dev/sd", "/dev/xvd")]
    for name in names:
        if os.path.exists(name):
            return os.path.realpath(name)
    for path in glob.glob("/sys/block/nvme*/device/serial"):  # for systems without udev's links
        if _read(path).strip() == serial:
            return f"/dev/{path.split('/')[3]}"
    return None


def disk(volume_id: str, device: str, path: str, *, read_only: bool, wait_s: float) -> dict[str, bool]:
    """Mounts an EBS volume at `path`. Creates a file system on a blank one first.

    Waits for its device for wait_s seconds. Returns {"formatted": ..., "changed": ...}. Raises Failed.
    """
    give_up_at = time.monotonic() + wait_s
    while (found := find_device(volume_id, device)) is None:
        if time.monotonic() > give_up_at:
            raise Failed(f"the disk {volume_id} is attached, but no device of it has appeared")
        time.sleep(0.2)
    if volume_probe.find_mount(path) is not None:
        if volume_probe.probe(path) is None:
            return {"formatted": False, "changed": False}
        unmount(path)
    kind = find_filesystem(found)
    formatted = kind is None
    if kind is None:
        if not is_blank(found):
            raise Failed(f"{found} ({volume_id}) has no file system, but is not blank; it is not formatted")
        user = find_user()  # mkfs itself sets the owner: after a kill, the next run leaves the file system as it is
        run(["mkfs.ext4", "-q", "-m", "0", "-E", f"root_owner={user.pw_uid}:{user.pw_gid}", found], LONG_S)
        kind = "ext4"
    os.makedirs(path, mode=0o755, exist_ok=True)
    options = "nosuid,nodev,noatime" + (",ro" if read_only else "")
    run(["mount", "-t", kind, "-o", options, found, path], LONG_S)
    if formatted:
        shutil.rmtree(os.path.join(path, "lost+found"))  # only root can read it; fsck creates it if necessary
    return {"formatted": formatted, "changed": True}


def find_filesystem(device: str) -> str | None:
    """The type of a device's file system; None if blkid finds nothing. Raises Failed for other contents."""
    code, said = call(["blkid", "-p", "-o", "export", device])
    if code == NOTHING_FOUND:
        return None
    values = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    if code != 0 or not values.get("TYPE"):
        raise Failed(f"{device} has no file system, but a partition table or unknown contents; it is not formatted")
    return values["TYPE"]


def is_blank(device: str) -> bool:
    """Whether a device begins with zeros, as a new EBS volume does."""
    with open(device, "rb") as stream:
        return not stream.read(BLANK_BYTES).strip(b"\0")


# -- serving -----------------------------------------------------------------------------------------------------------


def key() -> str:
    """The public key with which this node logs in to the node that serves a volume. Creates a key if there is none."""
    if not os.path.exists(KEY + ".pub"):
        os.makedirs(RUN, mode=0o755, exist_ok=True)
        for path in (KEY, KEY + ".pub"):
            if os.path.exists(path):
                os.unlink(path)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "cluster-volumes", "-f", KEY])
    return _read(KEY + ".pub").strip()


def serve_sftp(folders: Mapping[str, str], config: str, authorized: str) -> list[str]:
    """Serves folders to other nodes by an sshd that shows nothing else. folders: {name: path}.

    config: sshd's configuration without UsePAM, which is copied from the node's own sshd: without PAM, sshd refuses
    locked accounts. Returns the names of the folders that were added, and "sshd" if that was started. Raises Failed.
    """
    changed = []
    for name, path in sorted(folders.items()):
        target = os.path.join(EXPORTS, name)
        os.makedirs(target, mode=0o755, exist_ok=True)
        if os.path.exists(path) and not os.path.samefile(path, target):
            if volume_probe.find_mount(target) is not None:
                unmount(target)
            run(["mount", "--bind", path, target])
            changed.append(name)
        elif not os.path.exists(path):
            raise Failed(f"{path}: no such folder")
    for name in set(os.listdir(EXPORTS)) - set(folders):
        unmount(os.path.join(EXPORTS, name))
        os.rmdir(os.path.join(EXPORTS, name))
    write(os.path.join(RUN, "authorized_keys"), authorized, 0o644)
    text = f"{config}UsePAM {find_use_pam()}\n"
    pid = find_sshd()
    if pid is not None and _read(SSHD_CONFIG) == text:
        return changed
    write(SSHD_CONFIG, text, 0o600)
    if pid is not None:
        end_sshd(pid)
    os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # for sshd's privilege separation
    run([shutil.which("sshd", path=SBIN) or "sshd", "-f", SSHD_CONFIG, "-E", SSHD_LOG])
    wait_until(lambda: find_sshd() is not None, "the sshd for volumes has not started: " + _read(SSHD_LOG)[-300:])
    return [*changed, "sshd"]


def find_sshd() -> int | None:
    """The pid of the sshd for volumes; None if it does not run."""
    try:
        pid = int(_read(os.path.join(RUN, "sshd.pid")) or 0)
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            return pid if pid and SSHD_CONFIG.encode() in stream.read() else None
    except (OSError, ValueError):
        return None


def end_sshd(pid: int) -> None:
    """Ends the sshd for volumes; the kernel closes its connections."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: find_sshd() is None, "the sshd for volumes does not end")


def find_use_pam() -> str:
    """Whether the node's own sshd uses PAM: "yes" or "no"."""
    code, said = call([shutil.which("sshd", path=SBIN) or "sshd", "-T"])
    return "yes" if code == 0 and "usepam yes" in said.lower().splitlines() else "no"


def stop_serving() -> None:
    """Ends the sshd for volumes, and withdraws all exports."""
    pid = find_sshd()
    if pid is not None:
        end_sshd(pid)
    for path in glob.glob(os.path.join(EXPORTS, "*")):
        unmount(path)
        os.rmdir(path)
    if os.path.exists(NFS_EXPORTS):
        os.unlink(NFS_EXPORTS)
        call(["exportfs", "-ra"])


def serve_nfs(exports: str) -> bool:
    """Exports folders by the kernel's NFS server. exports: lines of exports(5). Returns whether it changed anything."""
    if _read(NFS_EXPORTS) == exports and call(["pgrep", "-x", "nfsd"])[0] == 0:
        return False
    write(NFS_EXPORTS, exports, 0o644)
    run(["systemctl", "enable", "--now", "nfs-server"], 60.0)
    run(["exportfs", "-ra"])
    return True


def wait_until(condition: Callable[[], bool], complaint: str) -> None:
    """Waits until a condition is true. Raises Failed with `complaint` if it is not true in time."""
    give_up_at = time.monotonic() + SHORT_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise Failed(complaint)
        time.sleep(0.05)


def _read(path: str) -> str:
    """The content of a file; "" if it cannot be read."""
    try:
        with open(path) as stream:
            return stream.read()
    except OSError:
        return ""


# -- mounting ----------------------------------------------------------------------------------------------------------


def mount(mount: str, words: Sequence[str], entry: Mapping[str, Any], env: Mapping[str, str], known_hosts: str) -> None:
    """Mounts a volume by a command, and notes it. Raises Failed.

    env: variables of the command. known_hosts: lines of ssh's known_hosts, "" for a command without ssh.
    """
    check_folder(mount)
    if known_hosts:
        add_known_hosts(known_hosts)
    run(words, MOUNT_S, env)
    note(mount, entry)
    why = volume_probe.probe(mount)
    if why is not None:
        detach(mount)
        raise Failed(why)


def add_known_hosts(text: str) -> None:
    """Adds servers' keys to this node's known hosts. They replace earlier keys of the same servers."""
    names = {line.split()[0] for line in text.splitlines()}
    others = [line for line in _read(KNOWN_HOSTS).splitlines() if line.strip() and line.split()[0] not in names]
    write(KNOWN_HOSTS, "".join(line + "\n" for line in others + text.splitlines()), 0o600)


def check_folder(mount: str) -> None:
    """Creates the folder of a mount. Raises Failed if it is not empty, or is a mount already."""
    try:
        os.makedirs(mount, mode=0o755, exist_ok=True)
        if volume_probe.find_mount(mount) is not None:
            raise Failed(f"{mount}: something else is mounted there")
        if os.listdir(mount):
            raise Failed(f"{mount}: the folder is not empty; a mount would hide its contents")
    except OSError as error:
        raise Failed(f"{mount}: {error.strerror or error}") from None


def unmount(mount: str) -> bool:
    """Unmounts a folder: at once if possible, else as soon as it is not in use any more. Returns whether it was in use.

    A dead server does not delay this. Raises Failed.
    """
    try:
        code, _ = call(["umount", mount], UNMOUNT_S)
    except Failed:
        code = 1
    if code != 0 and volume_probe.find_mount(mount) is not None:
        detach(mount)
        return True
    note(mount, None)
    return False


def detach(mount: str) -> None:
    """Unmounts a folder lazily, with all mounts below it. Programs keep their open files. Raises Failed."""
    call(["umount", "-l", mount], UNMOUNT_S)
    if volume_probe.find_mount(mount) is not None:
        raise Failed(f"{mount} cannot be unmounted")
    note(mount, None)


def renew(mount: str) -> bool:
    """Unmounts a folder, unless it is in use. Returns whether it is unmounted."""
    code, _ = call(["umount", mount], UNMOUNT_S)
    if code == 0:
        note(mount, None)
    return code == 0


def unmount_all() -> list[str]:
    """Undoes all mounts of this program, and stops serving. Returns the folders that were in use."""
    busy = [path for path in read_notes() if unmount(path)]
    stop_serving()
    disks = [path for path in glob.glob(os.path.join(DISKS, "*")) if volume_probe.find_mount(path) is not None]
    return busy + [path for path in disks if unmount(path)]


STEPS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (
        look, install, disk, key, serve_sftp, serve_nfs, mount, unmount, renew, unmount_all,
    )
}  # fmt: skip


def main() -> None:
    """Carries out steps until stdin ends."""
    stay_alive()
    os.makedirs(RUN, mode=0o755, exist_ok=True)
    with open(LOCK, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # another command may run this program at the same time
        for line in sys.stdin.buffer:
            order = json.loads(line)
            try:
                tell({"result": STEPS[order.pop("step")](**order)})
            except (Failed, OSError) as error:
                tell({"error": str(error)})
    os._exit(0)  # does not wait for the thread, which may hold stdout's lock
