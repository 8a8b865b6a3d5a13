"""User data, and the files and commands of cloud-init.

If the sandbox has the package cloud-init, hosts run its own stages. Otherwise they run scripts and boothooks, in the
layout of cloud-init. Source: cloud-init documentation, "User-data formats" and "Boot stages".
"""

import gzip
import zlib

from ec2_sandbox.hosts.files import HostFile, read_root

CLOUD = "/var/lib/cloud"
INSTANCE = f"{CLOUD}/instance"
RUNNER = "/usr/lib/ec2-sandbox/run-user-data"

FOLDERS = {"text/x-shellscript": f"{INSTANCE}/scripts", "text/cloud-boothook": f"{INSTANCE}/boothooks"}  # by type
TYPES_BY_BEGINNING = (
    ("#!", "text/x-shellscript"),
    ("#cloud-boothook", "text/cloud-boothook"),
    ("#cloud-config", "text/cloud-config"),
    ("#include", "text/x-include-url"),
)


def render_first_boot(instance_id: str, user_data: bytes, *, has_cloud_init: bool) -> tuple[HostFile, ...]:
    """Returns what runs at boot, and the files by which launchers see that user data has run. Pure.

    has_cloud_init: whether the host installs the package, which reads user data from IMDS.
    """
    if has_cloud_init:
        return tuple(read_root("with-cloud-init"))
    folder, text = f"{CLOUD}/instances/{instance_id}", _unpacked(user_data).decode(errors="replace")
    scripts, warnings = [], ""
    if text.strip():
        kind = find_type(text)
        where = FOLDERS.get(kind)
        if where is None:
            warnings = f"user data of type {kind} does not run without cloud-init: ec2-sandbox install cloud-init\n"
        else:
            path = f"{where.replace(INSTANCE, folder)}/part-001"
            scripts.append(HostFile(path=path, content=text, mode=0o700, each_boot=kind == "text/cloud-boothook"))
    return (
        *read_root("without-cloud-init"),
        HostFile(path=f"{CLOUD}/data/instance-id", content=f"{instance_id}\n"),
        HostFile(path=f"{folder}/sem/.keep", content=""),
        HostFile(path=f"{folder}/warnings", content=warnings),
        HostFile(path=f"{folder}/user-data.txt", content=user_data.decode(errors="replace"), mode=0o600),
        HostFile(path=INSTANCE, content=f"instances/{instance_id}", link=True),
        *scripts,
    )


def find_type(text: str) -> str:
    """Returns the content type of user data, by its beginning. Pure."""
    lowered = text.lstrip().lower()
    return next((kind for beginning, kind in TYPES_BY_BEGINNING if lowered.startswith(beginning)), "text/plain")


def _unpacked(raw: bytes) -> bytes:
    try:
        return gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    except (OSError, EOFError, zlib.error):  # not gzip, and not a script
        return raw
