"""After a crash: has a launch that was under way taken effect? EC2's lists lag behind its deeds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from provision.describe import describe_cluster, describe_instances
from provision.files import ClusterFiles
from provision.progress import Event, Report
from provision.wait import poll

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

KEY_PAIR = "key pair"
SECURITY_GROUP = "security group"
PLACEMENT_GROUP = "placement group"

SETTLE_S = 30.0
"""How old a launch is, in seconds, when what EC2 does not list was not launched; or made, for other things."""


def wait_for_interrupted_launches(
    ec2: EC2Client,
    *,
    name: str,
    files: ClusterFiles,
    report: Report,
    except_digests: frozenset[str] = frozenset(),
) -> None:
    """Waits until the launches in the journal show in EC2's lists, or are SETTLE_S old without.

    except_digests: of requests that need not be waited for, since they will be repeated with their own tokens.
    Returns at once when the last `up` was not interrupted. Raises AwsError, ClusterError (a damaged journal).
    """
    launches = [launch for launch in files.launches() if launch.digest not in except_digests]
    if not launches:
        return
    expected = {index for launch in launches for index in launch.indices}
    age_s = time.time() - max(launch.started_at for launch in launches)

    def look() -> bool | None:
        listed = {node.index for node in describe_instances(ec2, name=name).live}
        return True if expected <= listed else None

    if look() is None and age_s < SETTLE_S:
        report(Event(kind="info", what="a launch was interrupted: looking whether AWS carried it out"))
        poll(look, timeout_s=SETTLE_S - max(age_s, 0.0))


def wait_for_what_was_made(ec2: EC2Client, *, name: str, files: ClusterFiles, report: Report) -> None:
    """Waits until what the last runs made, or began to make, shows in EC2's lists, or is SETTLE_S old without.

    For who is about to delete all that is listed. Returns at once when all of it is there.
    Raises AwsError, ClusterError (a damaged file).
    """
    now = time.time()
    young = {kind: at for kind, at in files.makings().items() if now - at < SETTLE_S}
    if not young:
        return

    def look() -> bool | None:
        state = describe_cluster(ec2, name=name)
        listed = {
            KEY_PAIR: state.key_pair is not None,
            SECURITY_GROUP: bool(state.security_groups),
            PLACEMENT_GROUP: state.placement_group is not None,
        }
        return True if all(listed.get(kind, True) for kind in young) else None

    if look() is None:
        report(Event(kind="info", what="something was made a moment ago: waiting until AWS lists it"))
        poll(look, timeout_s=SETTLE_S - max(now - max(young.values()), 0.0))
