"""Ends nodes that cannot end themselves, such as one whose kernel hangs: the other nodes end them through EC2.

A node that has a role does so at its own end, before its power goes off, and for at most LIMIT_S. It ends only a node
of its cluster that does not answer, and whose lease has ended according to EC2: by that node's own tag and by EC2's
clock. So a change of the lease that this node has missed does not end another node, nor does this node's own clock.

Python 3.6 and later, standard library only.
"""

import http.client
import time
from typing import Dict, List, NamedTuple, Optional

from node.lease import ec2, metadata, neighbors, system, terms

LIMIT_S = 15.0
HEAR_S = 2.0
"""How long to wait for a node's answer."""
HEARD_S = 30.0
"""A node that has answered gets this much time to end itself."""
PAUSE_S = 0.5
AT_ONCE = 100
"""Maximum of one call (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceStatus.html)."""
CHECKS_S = 300.0
"""How long EC2's status checks may take to detect that a node does not answer."""


class Plan(NamedTuple):
    """Ids of the instances to end. forced: without waiting for the node, which can no longer write to its disk."""

    terminated: List[str]
    stopped: List[str]
    forced: List[str]


def plan_ends(silent: List[ec2.Instance], why: str, own: terms.Lease, now: float, impaired: Dict[str, float]) -> Plan:
    """Returns which of the nodes that do not answer must end. Pure.

    why, own: why this node ends, and its lease. now: EC2's time. impaired: instance id -> for how many seconds it has
    failed EC2's status checks.
    """
    plan = Plan([], [], [])
    for one in silent:
        if one.lease is None or not is_over(one.lease, why, own, now, impaired.get(one.instance_id)):
            continue
        if one.lease.then == "down" or one.is_spot:  # one-time spot instances cannot be stopped
            plan.terminated.append(one.instance_id)
        else:
            (plan.forced if one.instance_id in impaired else plan.stopped).append(one.instance_id)
    return plan


def is_over(lease: terms.Lease, why: str, own: terms.Lease, now: float, impaired_s: Optional[float]) -> bool:
    """Returns whether the lease of a silent node has ended. Pure.

    The deadline is in its tag. The budget is the cluster's, so it is spent for all nodes with this lease. A node that
    is merely cut off may be in use: it counts as idle only if EC2 has not reached it for the cluster's idle limit.
    """
    if lease.until is not None and lease.until <= now:
        return True
    if lease != own:
        return False
    if why == "idle" and lease.idle_s is not None:
        return impaired_s is not None and impaired_s >= lease.idle_s - CHECKS_S
    return why == "budget"


class Closing(object):
    """The last seconds of this node.

    why, lease: why it ends, and its lease. cancelled: this node does not end after all.
    """

    def __init__(
        self,
        cluster: str,
        endpoint: str,
        why: str,
        lease: terms.Lease,
        others: neighbors.Neighbors,
    ) -> None:
        self.cluster = cluster
        self.endpoint = endpoint
        self.why = why
        self.lease = lease
        self.others = others
        self.cancelled = False
        self.began = system.boot_clock()
        self.thread = system.start_thread(self._work) if endpoint else None

    def is_done(self) -> bool:
        """Returns whether the node may end now."""
        is_working = self.thread is not None and self.thread.is_alive()
        return not is_working or self._left_s() <= 0

    def _left_s(self) -> float:
        return LIMIT_S - (system.boot_clock() - self.began)

    def _work(self) -> None:
        role = metadata.read_role()
        if role is None:
            return
        calls = ec2.Ec2(self.endpoint, role)
        while self._left_s() > 0 and not self.cancelled:
            try:
                if not self.end_silent(calls):
                    return
            except PermissionError as error:
                system.say("this node's role may not end the other nodes: {}".format(error))
                return
            except (OSError, ValueError, http.client.HTTPException) as error:
                system.say("the other nodes cannot be ended: {}".format(error))
            time.sleep(PAUSE_S)

    def end_silent(self, calls: ec2.Ec2) -> bool:
        """Ends the silent nodes. Returns whether there may soon be more. Raises OSError, ValueError, HTTPException."""
        found = self.find_silent(calls.find_others(self.cluster))
        silent = found[:AT_ONCE]
        if not silent or self.cancelled:
            return False
        plan = plan_ends(
            silent, self.why, self.lease, calls.now(), calls.find_impaired([one.instance_id for one in silent])
        )
        system.say("nodes that do not answer: {}; to end: {}".format([one.instance_id for one in silent], plan))
        ends = ((calls.terminate, plan.terminated), (calls.stop, plan.stopped), (calls.force_to_stop, plan.forced))
        for act, ids in ends:
            if ids:
                act(ids)
        # If this node's clock is ahead of EC2's, this node ends too early.
        untils = [one.lease.until for one in silent if one.lease is not None and one.lease.until is not None]
        return len(found) > AT_ONCE or any(0 < until - calls.now() < self._left_s() for until in untils)

    def find_silent(self, others: List[ec2.Instance]) -> List[ec2.Instance]:
        """Returns the nodes that do not answer. An answer takes milliseconds, and datagrams may get lost."""
        give_up_at = system.boot_clock() + HEAR_S
        while True:
            silent = [one for one in others if not self.others.has_heard(one.address, self.began - HEARD_S)]
            if not silent or system.boot_clock() > give_up_at:
                return silent
            for one in silent:
                self.others.ping(one.address)
            time.sleep(0.1)
