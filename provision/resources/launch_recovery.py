"""After a crash: has a launch that was under way taken effect? EC2's lists lag behind its deeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from foundation.progress import Event, Report
from foundation.waiting import poll
from provision.describe import find_launched
from provision.files import ClusterFiles, Launch

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

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
    age_s = time.time() - max(launch.started_at for launch in launches)

    def look() -> bool | None:
        listed = find_launched(ec2, name=name)
        return True if all(_shows_all(launch, listed.get(launch.token, ())) for launch in launches) else None

    if look() is None and age_s < SETTLE_S:
        report(Event(kind="info", what="a launch was interrupted: looking whether AWS carried it out"))
        poll(look, timeout_s=SETTLE_S - max(age_s, 0.0))


def forget_seen_launches(ec2: EC2Client, *, name: str, files: ClusterFiles) -> None:
    """Drops the tokens of launches that EC2 lists; their instances stay known. For whoever holds the cluster's lock.

    EC2 answers a repeated token with the instances of the first call, also when these have ended. A token is needed
    only until what it launched is listed: from then on nobody repeats the launch by mistake. Returns at once when there
    is no launch in the journal. Raises AwsError, ClusterError (a damaged journal).
    """
    launches = files.launches()
    if not launches:
        return
    listed = find_launched(ec2, name=name)
    now = time.time()
    seen = [
        launch.token
        for launch in launches
        if (ids := listed.get(launch.token)) and (_shows_all(launch, ids) or now - launch.started_at >= SETTLE_S)
    ]
    files.forget_launches(listed, tokens=seen)


def _shows_all(launch: Launch, ids: Collection[str]) -> bool:
    """Whether `ids`, the instances that EC2 lists with a launch's token, are all that it launched. Pure.

    A launch whose answer was lost may have been for fewer nodes than it asked for: of that this says no.
    """
    if launch.instance_ids:
        return set(launch.instance_ids) <= set(ids)
    return len(ids) >= len(launch.indices)


def wait_for_what_was_made(*, files: ClusterFiles, is_listed: Callable[[str], bool], report: Report) -> None:
    """Waits until what the last runs made, or began to make, shows in EC2's lists, or is SETTLE_S old without.

    For who is about to delete all that is listed. is_listed: whether EC2 lists something of a kind. Returns at once
    when all of it is there. Raises AwsError, ClusterError (a damaged file).
    """
    now = time.time()
    young = {kind: at for kind, at in files.makings().items() if now - at < SETTLE_S}
    if not young:
        return

    def look() -> bool | None:
        return True if all(is_listed(kind) for kind in young) else None

    if look() is None:
        report(Event(kind="info", what="something was made a moment ago: waiting until AWS lists it"))
        poll(look, timeout_s=SETTLE_S - max(now - max(young.values()), 0.0))
