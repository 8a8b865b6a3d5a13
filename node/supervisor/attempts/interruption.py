"""Handles spot notices: the job saves a checkpoint while the node still exists.

Each node asks the instance metadata service (node/agent/notice.py). After the first notice, all processes of the
job are informed. Once one of them has saved a checkpoint, or the time is over, the attempt ends.
"""

import time
from collections.abc import Callable, Mapping

from node.protocol import Order
from node.supervisor.agents import HostAgent
from node.supervisor.attempts.restarts import AttemptEnd
from node.tasks import Tasks
from node.wire import Notice, SaveCheckpoint

MARGIN_S = 10.0  # before the node's end, for the end of the job's processes


def grace_s(order: Order, notice: Notice, now: float) -> float:
    """Returns how many seconds a job may take to save its checkpoint. now: seconds since the epoch. Pure."""
    left_s = order.train.checkpoint_grace_s if notice.at is None else notice.at - now - MARGIN_S
    return max(0.0, min(order.train.checkpoint_grace_s, left_s))


class Interruption:
    """The notices of one attempt. decide(ending): ends the attempt."""

    def __init__(
        self,
        order: Order,
        agents: Mapping[str, HostAgent],
        tasks: Tasks,
        message: Callable[[str], None],
        decide: Callable[[AttemptEnd], None],
    ) -> None:
        self._order, self._agents, self._tasks = order, agents, tasks
        self._message, self._decide = message, decide
        self._notices: dict[str, Notice] = {}
        self._has_ended = False
        self.progress: dict[str, int] | None = None  # the last finished batch of the foremost worker
        self.saved: dict[str, int] | None = None  # the last finished batch in the checkpoint

    @property
    def hosts(self) -> tuple[str, ...]:
        """The nodes that will be interrupted."""
        return tuple(self._notices)

    def note_notice(self, agent: HostAgent, notice: Notice) -> None:
        """Handles the notice that a node will be interrupted."""
        host = agent.host.name
        if host in self._notices:
            return
        is_first = not self._notices
        self._notices[host] = notice
        at = "soon" if notice.at is None else time.strftime("at %H:%M:%S UTC", time.gmtime(notice.at))
        self._message(f"spot notice: EC2 will {notice.action} {host} {at}")
        if is_first:
            for one in self._agents.values():  # their processes save a checkpoint
                one.put(SaveCheckpoint())
        if self._order.train.on_node_loss == "fail":
            return  # the job may end before the node does
        seconds = grace_s(self._order, notice, time.time())
        if is_first:
            self._message(f"waiting up to {seconds:.0f} s for a checkpoint")
        self._tasks.later(seconds, self._give_up)  # the node that ends first counts

    def note_saved(self, who: str, saved: "dict[str, int]") -> None:
        """Handles a report of a saved checkpoint, which has no effect without a notice. who: the process's name."""
        if not self._notices:
            return
        is_first, self.saved = self.saved is None, saved
        if is_first:
            at = f" of epoch {saved['epoch']}, batch {saved['batch']}" if {"epoch", "batch"} <= set(saved) else ""
            self._message(f"{who} has saved a checkpoint{at}")
        if self._order.train.on_node_loss != "fail":
            self._end()

    def note_progress(self, progress: "dict[str, int]") -> None:
        """Handles a process's report of finished batches."""
        if {"epoch", "batch"} <= set(progress):
            before = self.progress or progress
            self.progress = max(before, progress, key=lambda one: (one["epoch"], one["batch"]))

    def _give_up(self) -> None:
        if self._has_ended:
            return
        self._message("no checkpoint was saved in time: the job will continue from its last one")
        self._end()

    def _end(self) -> None:
        self._has_ended = True
        error = f"{' and '.join(self.hosts)}: interrupted by EC2 (spot notice)"
        self._decide(AttemptEnd(1, error, "notice", lost=self.hosts))
