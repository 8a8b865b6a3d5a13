"""Existing file systems of EFS and FSx for Lustre: what mounts them. Only reads.

https://docs.aws.amazon.com/efs/latest/ug/mounting-fs-mount-cmd-dns-name.html
https://docs.aws.amazon.com/fsx/latest/LustreGuide/mounting-ec2-instance.html
"""

from functools import partial
from typing import Literal

from msgspec import Struct

from foundation.errors import ConfigError
from provision.aws.clients import Clients, aws_errors, unless_refused
from provision.model import domain_of

NAMES = {"efs": "EFS", "lustre": "FSx for Lustre"}
_OTHERS = frozenset({"FileSystemNotFound", "BadRequest"})
"""The answers to the id of another service's file system."""


class FileSystem(Struct, frozen=True, kw_only=True):
    """A file system as AWS reports it. export: see MountSource."""

    kind: Literal["efs", "lustre"]
    dns_name: str
    export: str


def find_file_system(clients: Clients, file_system_id: str) -> FileSystem:
    """Returns the file system of [[volumes]] source = "fs-...". Raises ConfigError if nodes cannot use it, AwsError."""
    where = f'[[volumes]] source = "{file_system_id}"'
    with aws_errors(f"looking for the file system {file_system_id}"):
        found = _find_efs(clients, file_system_id) or _find_lustre(clients, file_system_id)
    if found is None:
        raise ConfigError(
            f"{where}: neither EFS nor FSx has this file system in {clients.region}",
            hint="correct source or [provision] region; to list them: aws efs describe-file-systems; "
            "aws fsx describe-file-systems",
        )
    return found


def _find_efs(clients: Clients, file_system_id: str) -> FileSystem | None:
    if unless_refused(_OTHERS, lambda: clients.efs.describe_file_systems(FileSystemId=file_system_id)) is None:
        return None
    # The name resolves to the mount target in the node's zone.
    dns_name = f"{file_system_id}.efs.{clients.region}.{domain_of(clients.region)}"
    return FileSystem(kind="efs", dns_name=dns_name, export="/")


def _find_lustre(clients: Clients, file_system_id: str) -> FileSystem | None:
    read = partial(clients.fsx.describe_file_systems, FileSystemIds=[file_system_id])
    systems = unless_refused(_OTHERS, lambda: read()["FileSystems"])
    if not systems:
        return None
    [shown] = systems
    if shown.get("FileSystemType") != "LUSTRE":
        raise ConfigError(
            f'[[volumes]] source = "{file_system_id}": it is FSx for {shown.get("FileSystemType")}, and only FSx for '
            "Lustre is mounted by id",
            hint=f'if it has an NFS export, use that: source = "{shown.get("DNSName", "HOST")}:/EXPORT"',
        )
    return FileSystem(
        kind="lustre",
        dns_name=shown.get("DNSName", ""),
        export=f"/{shown.get('LustreConfiguration', {}).get('MountName', 'fsx')}",
    )
