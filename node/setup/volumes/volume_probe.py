"""Where volumes are mounted on a node. node/agent/volumes.py asks whether they work."""

RUN = "/run/cluster-volumes"
"""The folder for data of mount_volumes.py that must not outlive a reboot, such as keys: it is in memory."""
NOTES = RUN + "/mounted.json"
DISKS = "/var/lib/cluster/volumes"
"""The folder in which the disks of EBS volumes are mounted."""


def is_mounted(path: str) -> bool:
    """Whether a file system is mounted at a path, which has no blanks. Asks only the kernel, no server."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
        return any(line.split(" ")[4] == path for line in stream)
