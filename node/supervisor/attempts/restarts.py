"""Decides what follows an attempt of a job, and replaces hosts in its order. Pure.

A lost node is not a failure of the job: with on_node_loss = "requeue", the next attempt starts once the node has been
replaced, at most `restarts` times; so it does after a hang with on_stall = "requeue". A job that fails by itself starts
again at most `restarts_on_error` times.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from node.protocol import LOSSES, Attempt, EndReason, JobHost, JobState, Left, NewFiles, Order
from node.wire import Closed

MOST_BATCHES = 1 << 31  # protocol.Count
# The lines that this project's scripts print when they resume, as with CLUSTER_RESUME=1, and without a checkpoint.
RESUMED = re.compile(r"Resumed from epoch (\d{1,9}) batch (\d{1,9})")
BEGUN_ANEW = re.compile(r"No complete checkpoint .*: training begins with epoch 0")


class AttemptEnd(Struct, frozen=True):
    """Why an attempt ends: the first cause.

    lost: the nodes that are known to be lost. final: whether the job cannot continue for a reason of the supervisor's
    own, such as a full disk.
    """

    exit_code: int
    error: str | None
    reason: EndReason
    lost: tuple[str, ...] = ()
    final: bool = False

    @property
    def state(self) -> JobState:
        """The state of the job, if no other attempt follows."""
        return self.reason if self.reason in ("done", "stopped") else "failed"


Next = Literal["end", "wait", "again"]


def find_lost(
    ending: AttemptEnd, suspects: Collection[str], left: Left, rebooted: Collection[str] = ()
) -> tuple[str, ...]:
    """Returns the hosts that an attempt has lost, sorted.

    left: the processes that could not be ended. A host is lost if the connection to it had been lost before, and it
    could not be searched. rebooted: hosts that have booted since.
    """
    unreachable = {name for name in suspects if any(pid == 0 for pid, _ in left.get(name, ()))}
    return tuple(sorted({*ending.lost, *unreachable, *(name for name in suspects if name in rebooted)}))


def merge_files(before: Iterable[NewFiles], closed: Mapping[str, Closed | None]) -> tuple[NewFiles, ...]:
    """Returns the job's new files after an attempt, by host. before: those of earlier ones. closed: None if lost.

    On a host whose agent was lost, what S3 had before may have changed since.
    """
    files = {one.host: one for one in before}
    for host, end in closed.items():
        if end is None and host in files:
            files[host] = replace(files[host], count=files[host].count + files[host].copied, copied=0)
        elif end is not None and end.files is not None:
            files[host] = end.files
    return tuple(files[host] for host in sorted(files))


def find_replaceable(order: Order, unhealthy: Collection[str]) -> tuple[str, ...]:
    """Returns the unhealthy hosts to replace: not the head, where this program runs, and not the user's own hosts."""
    if order.train.on_node_loss != "requeue":
        return ()
    return tuple(host.name for host in order.hosts[1:] if host.own_host is None and host.name in unhealthy)


def find_reason(reason: EndReason | None, lost: Collection[str], unhealthy: Collection[str]) -> EndReason | None:
    """Returns why an attempt has ended: an error with a lost or an unhealthy node is attributed to the node."""
    if reason != "error" or not (lost or unhealthy):
        return reason
    return "lost" if lost else "unhealthy"


def plan_next(order: Order, ending: AttemptEnd, lost: Sequence[str], left: Left, before: Iterable[Attempt]) -> Next:
    """Returns what follows an attempt: the "end" of the job, "wait" for new nodes, or "again" on the same hosts.

    left: the processes that remain on its hosts; if any remain on a host that is not lost, the job ends. before: the
    earlier attempts.
    """
    if ending.final or ending.reason in ("done", "stopped", "overtime"):
        return "end"
    if any(name not in lost for name in left):
        return "end"
    reasons = [attempt.reason for attempt in before]
    has_left = sum(reason in LOSSES for reason in reasons) < order.train.restarts
    if lost:
        replaceable = {host.name for host in order.hosts if host.own_host is None}
        return "wait" if order.train.on_node_loss == "requeue" and has_left and replaceable.issuperset(lost) else "end"
    if ending.reason == "stalled":
        return "again" if has_left else "end"
    return "again" if reasons.count("error") < order.train.restarts_on_error else "end"


def explain_end(lost: Sequence[str], before: Iterable[Attempt]) -> str:
    """Returns the addition to the error of a job that ends because it has lost nodes. before: the earlier attempts."""
    restarts = sum(attempt.reason in LOSSES for attempt in before)
    after = f", after {restarts} restart{'s' * (restarts > 1)}" if restarts else ""
    return f"{', '.join(lost)} lost{after}"


def find_refused(hosts: Sequence[JobHost], waiting_for: Collection[str], present: Collection[str] = ()) -> str | None:
    """Returns why these hosts cannot replace the ones that a job waits for, or None.

    present: its other hosts but the head: one of them may have ended while the job waits, and been replaced, too.
    """
    others = ", ".join(host.name for host in hosts if host.name not in waiting_for and host.name not in present)
    return f"the job does not wait for {others}, but for {', '.join(sorted(waiting_for))}" if others else None


def replace_hosts(order: Order, new: Iterable[JobHost]) -> None:
    """Replaces the hosts with the same names by new ones, which run the same processes."""
    by_name = {host.name: host for host in new}
    order.hosts = tuple(
        replace(by_name[host.name], workers=host.workers, servers=host.servers, own_host=host.own_host)
        if host.name in by_name
        else host
        for host in order.hosts
    )


def count_lost_batches(done: Mapping[str, int] | None, resumed: Mapping[str, int] | None) -> int | None:
    """Returns the number of batches that an attempt had finished and the next one repeats; None if it is unknown.

    done, resumed: {"epoch", "batch", perhaps "batches" of an epoch}: the progress of the first attempt, and the point
    where the second one resumes. Both count the finished batches of the epoch. done: as the program wrote it.
    """
    if done is None or resumed is None or not {"epoch", "batch"} <= done.keys():
        return None
    epochs = done["epoch"] - resumed["epoch"]
    batches = done.get("batches", resumed.get("batches"))
    if epochs and not batches:
        return None
    return min(max(0, epochs * (batches or 0) + done["batch"] - resumed["batch"]), MOST_BATCHES)


def parse_resumed(text: str) -> dict[str, int] | None:
    """Returns where a worker resumes, or None if this line of its output does not report it."""
    if BEGUN_ANEW.search(text):
        return {"epoch": 0, "batch": 0}
    found = RESUMED.search(text)
    return {"epoch": int(found[1]), "batch": int(found[2])} if found is not None else None
