"""Probes whether a volume works. A child process asks its server, so that a dead one cannot block the caller."""

import subprocess
import sys

RUN = "/run/cluster-volumes"
"""The folder for data of mount_volumes.py that must not outlive a reboot, such as keys: it is in memory."""
NOTES = RUN + "/mounted.json"
DISKS = "/var/lib/cluster/volumes"
"""The folder in which the disks of EBS volumes are mounted."""
LIMIT_S = 7.0
NOT_MOUNTED = "it is not mounted"
# The name does not exist and is in no cache, so the server is asked. A server that denies access has answered, too.
ASK = """
import errno, os, sys
try:
    os.lstat(os.path.join(sys.argv[1], ".cluster-volume-" + os.urandom(8).hex()))
except OSError as error:
    if error.errno not in (errno.ENOENT, errno.EACCES):
        sys.stdout.write(os.strerror(error.errno))
"""


def find_mount(path: str) -> list[str] | None:
    """[type, source] of the file system mounted at a path; None if none is. Asks only the kernel, no server."""
    found: list[str] | None = None
    with open("/proc/self/mountinfo", "rb") as stream:
        for line in stream:
            fields, _, rest = line.decode("utf-8", "surrogateescape").partition(" - ")
            if unescape(fields.split(" ")[4]) == path:
                found = [unescape(word) for word in rest.split(" ")[:2]]  # the last mount hides the others
    return found


def unescape(word: str) -> str:
    """A word of /proc/self/mountinfo without its escapes."""
    for escaped, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(escaped, char)
    return word


def words(path: str) -> list[str]:
    """The command line that asks the server of a mount."""
    return [sys.executable, "-S", "-E", "-c", ASK, path]


def read(code: int | None, output: bytes, limit_s: float) -> str | None:
    """The reason why a mount does not work, from the end of the command; None if it works. code: None: no answer."""
    if code is None:
        return f"no answer for {limit_s:g} s"
    if code:  # it was killed, or Python did not start
        return f"its probe ended with exit code {code}"
    return output.decode("utf-8", "replace") or None


def probe(path: str, limit_s: float = LIMIT_S) -> str | None:
    """The reason why a mount does not work; None if it works. Takes at most about limit_s seconds."""
    if find_mount(path) is None:
        return NOT_MOUNTED
    child = subprocess.Popen(
        words(path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()  # it may end only when the mount gives up, so it is not waited for
        return read(None, b"", limit_s)
    return read(child.returncode, output, limit_s)
