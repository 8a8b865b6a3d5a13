"""Mounts volumes on one node, and serves them to other nodes: carries out the steps of bootstrap/volumes, as root.

It arrives over stdin, followed by one line of JSON for each step, and ends with its stdin:

    {"step": a function of STEPS, ...its arguments}      answered by {"result": ...} or {"error": text}
    {"alive": true}                                      sent by this program every two seconds

It notes its mounts in /run, which a reboot empties together with the mounts. Everything that may wait for a dead server
runs in a child process with a time limit. Keys and passwords stay in /run, in memory.
"""

import asyncio
import contextlib
import fcntl
import glob
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from node.agent import volumes
from node.job_folder import write_whole
from node.setup.apt import STOP_UPDATES
from node.setup.messages import send_message, stay_alive
from node.setup.volumes import volume_probe
from node.setup.volumes.volume_probe import DISKS, NOTES, RUN

LOCK = os.path.join(RUN, "lock")
NFS_EXPORTS = "/etc/exports.d/cluster-volumes.exports"
COMMANDS = ("mount.nfs4", "s3fs", "exportfs")
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
    with tempfile.TemporaryFile(dir=RUN) as output:
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


def run(words: Sequence[str], limit_s: float = SHORT_S, env: Mapping[str, str] | None = None) -> str:
    """Runs a command. Returns its output. Raises Failed with its last lines if it fails."""
    code, output = call(words, limit_s, env)
    if code != 0:
        last = "; ".join(line.strip() for line in output.splitlines()[-LAST_LINES:] if line.strip())
        raise Failed(f"{os.path.basename(words[0])} ended with exit code {code}: {last or 'without a message'}")
    return output


# -- facts -------------------------------------------------------------------------------------------------------------


def describe() -> dict[str, Any]:
    """Gathers the facts about this node."""
    noted = read_notes()
    user = find_user()
    return {
        "commands": [name for name in COMMANDS if shutil.which(name, path=SBIN)],
        "uid": user.pw_uid,
        "gid": user.pw_gid,
        "noted": noted,
        "dead": {path: why for path in noted if (why := asyncio.run(volumes.ask(path))) is not None},
        "disks": find_disks(),
    }


def find_disks() -> list[str]:
    """The folders at which EBS volumes are mounted."""
    return [path for path in glob.glob(os.path.join(DISKS, "*")) if volume_probe.is_mounted(path)]


def find_user() -> pwd.struct_passwd:
    """The user who logs in to this node, whose jobs use the volumes."""
    return pwd.getpwuid(int(os.environ.get("SUDO_UID") or os.getuid()))


def read_notes() -> dict[str, Any]:
    """The mounts that this program has made since the last boot: {mount: entry}."""
    found: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError), open(NOTES) as stream:
        found = json.load(stream)
    return found


def note(mount: str, entry: Mapping[str, Any] | None) -> None:
    """Notes a mount. With None as its entry, forgets it."""
    noted = read_notes()
    noted.pop(mount, None)
    if entry is not None:
        noted[mount] = entry
    write_whole(NOTES, json.dumps(noted).encode(), mode=0o644)  # the programs that run a job read it, too


# -- packages ----------------------------------------------------------------------------------------------------------


def install(packages: Sequence[str]) -> None:
    """Installs packages of Debian or Ubuntu."""
    call(["sh", "-c", STOP_UPDATES], LONG_S)  # `update` does not wait for the lock of the lists
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    run([*apt, "update"], LONG_S)
    run([*apt, "install", "-y", "--no-install-recommends", *packages], LONG_S)


# -- the disk ----------------------------------------------------------------------------------------------------------


def find_device(volume_id: str, device: str) -> str | None:
    """The path of an EBS volume's device; None if it does not exist. device: the device name of the attachment, or "".

    https://docs.aws.amazon.com/ebs/latest/userguide/identify-nvme-ebs-device.html
    """
    names = [f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{volume_id.replace('-', '')}"]
    if device:  # Xen's names, on instance types without NVMe
        names += [device, device.replace("/dev/sd", "/dev/xvd")]
    return next((os.path.realpath(name) for name in names if os.path.exists(name)), None)


def disk(volume_id: str, device: str, path: str, *, read_only: bool, wait_s: float) -> bool:
    """Mounts an EBS volume at `path`. Creates a file system on a blank one first.

    Waits for its device for wait_s seconds. Returns whether it was blank. Raises Failed.
    """
    give_up_at = time.monotonic() + wait_s
    while (found := find_device(volume_id, device)) is None:
        if time.monotonic() > give_up_at:
            raise Failed(f"the disk {volume_id} is attached, but no device of it has appeared")
        time.sleep(0.2)
    if volume_probe.is_mounted(path):
        if asyncio.run(volumes.ask(path)) is None:
            return False
        unmount(path)
    kind = find_filesystem(found)
    blank = kind is None
    if kind is None:
        if not is_blank(found):
            raise Failed(f"{found} ({volume_id}) has no file system, but is not blank; it is not formatted")
        user = find_user()  # mkfs itself sets the owner: after a kill, the next run leaves the file system as it is
        run(["mkfs.ext4", "-q", "-m", "0", "-E", f"root_owner={user.pw_uid}:{user.pw_gid}", found], LONG_S)
        kind = "ext4"
    os.makedirs(path, mode=0o755, exist_ok=True)
    options = "nosuid,nodev,noatime" + (",ro" if read_only else "")
    run(["mount", "-t", kind, "-o", options, found, path], LONG_S)
    if blank:
        shutil.rmtree(os.path.join(path, "lost+found"))  # only root can read it; fsck creates it if necessary
    return blank


def find_filesystem(device: str) -> str | None:
    """The type of a device's file system; None if blkid finds nothing. Raises Failed for other contents."""
    code, output = call(["blkid", "-p", "-o", "export", device])
    if code == NOTHING_FOUND:
        return None
    values = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    if code != 0 or not values.get("TYPE"):
        raise Failed(f"{device} has no file system, but a partition table or unknown contents; it is not formatted")
    return values["TYPE"]


def is_blank(device: str) -> bool:
    """Whether a device begins with zeros, as a new EBS volume does."""
    with open(device, "rb") as stream:
        return not stream.read(BLANK_BYTES).strip(b"\0")


# -- serving -----------------------------------------------------------------------------------------------------------


def serve(exports: str) -> None:
    """Exports folders by NFS. exports: lines of exports(5). Raises Failed."""
    os.makedirs(os.path.dirname(NFS_EXPORTS), mode=0o755, exist_ok=True)
    write_whole(NFS_EXPORTS, exports.encode(), mode=0o644)
    if os.path.isdir("/run/systemd/system"):
        run(["systemctl", "enable", "--now", "nfs-server"], 60.0)
    run(["exportfs", "-ra"])


def stop_serving() -> None:
    """Withdraws all exports."""
    if os.path.exists(NFS_EXPORTS):
        os.unlink(NFS_EXPORTS)
        call(["exportfs", "-ra"])


# -- mounting ----------------------------------------------------------------------------------------------------------


def mount(mount: str, words: Sequence[str], entry: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Mounts a volume by a command, and notes it. env: variables of the command. Raises Failed."""
    check_folder(mount)
    if words[0] == "s3fs" and " compat_dir " in run(["s3fs", "--help"]):
        # Since 1.92, only this option shows a folder that other tools have uploaded, without an object of its own.
        words = [*words[:-1], f"{words[-1]},compat_dir"]
    run(words, MOUNT_S, env)
    note(mount, entry)
    why = asyncio.run(volumes.ask(mount))
    if why is not None:
        detach(mount)
        raise Failed(why)


def check_folder(mount: str) -> None:
    """Creates the folder of a mount. Raises Failed if it is not empty, or is a mount already."""
    try:
        os.makedirs(mount, mode=0o755, exist_ok=True)
        if volume_probe.is_mounted(mount):
            raise Failed(f"{mount}: something else is mounted there")
        if os.listdir(mount):
            raise Failed(f"{mount}: the folder is not empty; a mount would hide its contents")
    except OSError as error:
        raise Failed(f"{mount}: {error.strerror or error}") from None


def unmount(mount: str, *, lazily: bool = True) -> bool:
    """Unmounts a folder. Returns whether it is in use. Raises Failed.

    lazily: a folder in use is unmounted as soon as it is not any more; otherwise, it stays. A dead server does not
    delay this.
    """
    try:
        code, _ = call(["umount", mount], UNMOUNT_S)
    except Failed:
        code = 1
    if code != 0 and volume_probe.is_mounted(mount):
        if lazily:
            detach(mount)
        return True
    note(mount, None)
    return False


def detach(mount: str) -> None:
    """Unmounts a folder lazily, with all mounts below it. Programs keep their open files. Raises Failed."""
    call(["umount", "-l", mount], UNMOUNT_S)
    if volume_probe.is_mounted(mount):
        raise Failed(f"{mount} cannot be unmounted")
    note(mount, None)


def unmount_all() -> list[str]:
    """Undoes all mounts of this program, and stops serving. Returns the folders that were in use."""
    busy = [path for path in read_notes() if unmount(path)]
    stop_serving()
    return busy + [path for path in find_disks() if unmount(path)]


STEPS: dict[str, Callable[..., Any]] = {
    one.__name__: one for one in (describe, install, disk, serve, mount, unmount, unmount_all)
}


def main() -> None:
    """Carries out steps until stdin ends."""
    stay_alive()
    os.makedirs(RUN, mode=0o755, exist_ok=True)
    with open(LOCK, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # another command may run this program at the same time
        for line in sys.stdin.buffer:
            order = json.loads(line)
            try:
                send_message({"result": STEPS[order.pop("step")](**order)})
            except (Failed, OSError) as error:
                send_message({"error": str(error)})
    os._exit(0)  # does not wait for the thread, which may hold stdout's lock
