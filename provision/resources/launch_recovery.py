"""After a crash: determines whether an interrupted launch took effect. EC2's lists lag behind its calls."""

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
"""A launch of this age that EC2 does not list did not take effect. The same holds for other resources."""


def wait_for_interrupted_launches(
    ec2: EC2Client,
    *,
    name: str,
    files: ClusterFiles,
    report: Report,
    except_digests: frozenset[str] = frozenset(),
) -> None:
    """Waits until EC2 lists the launches in the journal, or until they are SETTLE_S old.

    except_digests: of requests that need no wait because they will be repeated with the same tokens.
    Returns immediately if the last `up` was not interrupted. Raises AwsError; ClusterError (a damaged journal).
    """
    launches = [launch for launch in files.launches() if launch.digest not in except_digests]
    if not launches:
        return

    def check() -> bool | None:
        listed = find_launched(ec2, name=name)
        return True if all(_shows_all(launch, listed.get(launch.token, ())) for launch in launches) else None

    what = "a launch was interrupted: checking whether it took effect"
    _settle(check, max(launch.started_at for launch in launches), Event(kind="info", what=what), report)


def forget_seen_launches(ec2: EC2Client, *, name: str, files: ClusterFiles) -> None:
    """Drops the tokens of launches that EC2 lists; their instances stay known. The caller holds the cluster's lock.

    EC2 responds to a repeated token with the instances of the first call, even if these have ended. Once they are
    listed, the token is not needed: no run repeats the launch by mistake. Returns immediately if the journal has no
    launch. Raises AwsError; ClusterError (a damaged journal).
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
    """Returns whether `ids`, the instances that EC2 lists with a launch's token, are all that it launched. Pure.

    False for a launch whose response was lost and that got fewer nodes than it requested.
    """
    if launch.instance_ids:
        return set(launch.instance_ids) <= set(ids)
    return len(ids) >= len(launch.indices)


def wait_for_what_was_made(*, files: ClusterFiles, is_listed: Callable[[str], bool], report: Report) -> None:
    """Waits until EC2 lists the resources that earlier runs created or began to create, so that `down` can find them.

    Waits only until they are SETTLE_S old. is_listed: whether EC2 lists a resource of a kind. Returns immediately if
    all are listed. Raises AwsError; ClusterError (a damaged file).
    """
    young = {kind: at for kind, at in files.pending_creates().items() if time.time() - at < SETTLE_S}

    def check() -> bool | None:
        return True if all(is_listed(kind) for kind in young) else None

    what = "waiting until AWS lists what the last run made"
    _settle(check, max(young.values(), default=0.0), Event(kind="info", what=what), report)


def _settle(check: Callable[[], bool | None], began_at: float, event: Event, report: Report) -> None:
    """Waits until a check succeeds, or until SETTLE_S after `began_at`, and reports the event if it does."""
    left_s = SETTLE_S - max(time.time() - began_at, 0.0)
    if check() is None and left_s > 0:
        report(event)
        poll(check, timeout_s=left_s)
