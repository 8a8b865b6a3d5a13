"""After a crash: has a launch that was under way taken effect? EC2's lists lag behind its deeds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from provision.describe import describe_instances
from provision.files import ClusterFiles
from provision.progress import Event, Report
from provision.wait import poll

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

SETTLE_S = 30.0
"""How old a launch is, in seconds, when what EC2 does not list was not launched."""


def wait_for_interrupted_launches(
    ec2: EC2Client,
    *,
    name: str,
    files: ClusterFiles,
    report: Report,
    except_digest: str | None = None,
) -> None:
    """Waits until the launches in the journal show in EC2's lists, or are SETTLE_S old without.

    except_digest: a request that need not be waited for, since it will be repeated with its own token.
    Returns at once when the last `up` was not interrupted. Raises AwsError, ClusterError (a damaged journal).
    """
    launches = [launch for launch in files.launches() if launch.digest != except_digest]
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
