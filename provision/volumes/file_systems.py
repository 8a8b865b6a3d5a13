"""Existing file systems of EFS and FSx for Lustre: what mounts them. Only reads.

https://docs.aws.amazon.com/efs/latest/ug/mounting-fs-mount-cmd-dns-name.html
https://docs.aws.amazon.com/fsx/latest/LustreGuide/mounting-ec2-instance.html
"""

from functools import partial

from msgspec.structs import replace

from foundation.errors import ConfigError
from provision.aws.clients import Clients, aws_errors, unless_refused
from provision.model import domain_of
from provision.volumes.source import MountSource

NAMES = {"efs": "EFS", "lustre": "FSx for Lustre"}
_OTHERS = frozenset({"FileSystemNotFound", "BadRequest"})
"""The answers to the id of another service's file system."""


def find_file_system(clients: Clients, planned: MountSource) -> MountSource:
    """Returns the mount of source = "fs-..." with its kind and server. Raises ConfigError if nodes cannot use it.

    Also raises AwsError.
    """
    with aws_errors(f"looking for the file system {planned.source}"):
        found = _find_efs(clients, planned) or _find_lustre(clients, planned)
    if found is None:
        raise ConfigError(
            f'[[volumes]] source = "{planned.source}": neither EFS nor FSx has this file system in {clients.region}',
            hint="correct source or [provision] region; to list them: aws efs describe-file-systems; "
            "aws fsx describe-file-systems",
        )
    return found


def _find_efs(clients: Clients, planned: MountSource) -> MountSource | None:
    if unless_refused(_OTHERS, lambda: clients.efs.describe_file_systems(FileSystemId=planned.source)) is None:
        return None
    # The name resolves to the mount target in the node's zone.
    server = f"{planned.source}.efs.{clients.region}.{domain_of(clients.region)}"
    return replace(planned, kind="efs", server=server, export="/")


def _find_lustre(clients: Clients, planned: MountSource) -> MountSource | None:
    read = partial(clients.fsx.describe_file_systems, FileSystemIds=[planned.source])
    systems = unless_refused(_OTHERS, lambda: read()["FileSystems"])
    if not systems:
        return None
    [shown] = systems
    if shown.get("FileSystemType") != "LUSTRE":
        raise ConfigError(
            f'[[volumes]] source = "{planned.source}": it is FSx for {shown.get("FileSystemType")}, and only FSx for '
            "Lustre is mounted by id",
            hint=f'if it has an NFS export, use that: source = "{shown.get("DNSName", "HOST")}:/EXPORT"',
        )
    export = f"/{shown.get('LustreConfiguration', {}).get('MountName', 'fsx')}"
    return replace(planned, kind="lustre", server=shown.get("DNSName", ""), export=export)
