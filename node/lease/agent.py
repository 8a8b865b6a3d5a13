"""Ends this node at the end of its cluster's lease. The user data starts it at each boot, as root.

    boot LEASE CLUSTER ENDPOINT
                saves a copy of this program for the next boot, and starts it in the background
    again       does the same with the arguments that the last `boot` saved
    set LEASE   makes the running program use another lease; starts it if it does not run
    show        asks the running program
    set and show answer with a line of JSON: {"lease", "idle_s", "why", "ends", "spent_usd", "saved"}

It needs no credentials, head, network or space on the disk. A change of the lease is saved in SAVED. The newest of
these leases counts: the one in the user data, in SAVED, in the instance's tag cluster:lease in its metadata, and the
one from `set`. If SAVED cannot be written or read, the others count.

The deadline is measured by two clocks, the time of day and a clock that does not jump, and the first one to reach it
counts. Idle time is that of the cluster. Only the head knows the other nodes: every ASK_EVERY_S it asks them how long
they have been idle, and sends them the shortest time. A node that no head has ever asked decides by itself.

Python 3.6 and later, standard library only.
"""

import json
import os
import select
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from node.lease import activity, control, metadata, neighbors, peers, start, state, system, terms, warn

ASK_EVERY_S = 15.0
KEEP_EVERY_S = 60.0
TAG_S = 3.0
"""How long a node whose lease seems to have ended waits for its tag, which may have a later lease."""
BOOT_S = 20.0
"""The same after its boot, when the network may not be up, and the disk may have lost a change."""


class Agent(object):
    """The program in the background.

    endpoint: the URL of EC2, to end nodes that cannot end themselves; empty to leave them alone. root: of the file
    system that it reads. end: ends the node.
    """

    def __init__(
        self,
        cluster: str,
        armed: str,
        endpoint: str = "",
        root: str = "/",
        end: "Optional[Callable[[str], None]]" = None,
    ) -> None:
        self.cluster = cluster
        self.endpoint = endpoint
        self.root = root
        self.end = end or system.end_node
        folders = [os.path.join(root, folder.lstrip("/")) for folder in (system.SAVED, system.RUN)]
        self.state = state.State(folders, armed)
        self.activity = activity.Activity(root)
        self.looks = activity.IdleTime(longest_s=2 * ASK_EVERY_S)
        self.neighbors = neighbors.Neighbors(root)
        self.warned: Dict[str, float] = {}
        self.began = system.boot_clock()
        self.tag_at = -1.0  # by the boot clock: when the last successful read of the tag began
        self.over_at: Optional[float] = None
        self.hurry = threading.Event()
        self.closing: Optional[peers.Closing] = None

    def look_every_s(self) -> float:
        """Returns the time between looks: shorter for a short idle time."""
        idle_s = self.state.lease.idle_s
        return ASK_EVERY_S if idle_s is None else min(max(idle_s / 20.0, 1.0), ASK_EVERY_S)

    def keep_looking(self) -> None:
        """Checks forever whether the node is in use. A look may hang: the deadline does not wait for it."""
        while True:
            if self.state.lease.idle_s is not None:
                try:
                    use = self.activity.look(time.time(), system.boot_clock())
                    self.neighbors.find_asked()
                except Exception as error:  # noqa: BLE001 - after any error, it is unknown whether the node is idle
                    use = activity.Use("it cannot be determined: {!r}".format(error))
                self.looks.note(use, system.boot_clock())
            time.sleep(self.look_every_s())

    def keep_up(self) -> None:
        """Reads the tag and writes the state, forever."""
        while True:
            asked_at = system.boot_clock()
            text = metadata.read_tag()
            if text is not None and self.state.offer(text):
                system.say("the tag has another lease: {}".format(text))
            if text is not None:
                self.tag_at = asked_at
            self.state.keep()
            self.hurry.wait(KEEP_EVERY_S if self.tag_at >= 0 or not self.is_new() else 1.0)
            self.hurry.clear()

    def is_new(self) -> bool:
        """Returns whether the program has just started."""
        return system.boot_clock() - self.began < BOOT_S

    def find_idle(self) -> Tuple[float, Optional[str]]:
        """Returns how long the cluster has been idle, as far as this node knows, and why it is not."""
        idle_s, why = self.looks.read(system.boot_clock())
        least = self.neighbors.find_least(system.boot_clock())
        if self.neighbors.is_deaf and self.neighbors.asked:
            return 0.0, "the other nodes cannot be asked: UDP port {} is taken".format(neighbors.PORT)
        if least is not None and least[0] < idle_s:
            idle_s = least[0]
            why = why or "the node at {} is not idle".format(least[1]) if idle_s < 2 * ASK_EVERY_S else why
        return idle_s, why

    def describe(self) -> Dict[str, Any]:
        """Returns the answer to `show`."""
        lease, left, spent = self.state.read()
        idle_s, why = self.find_idle() if lease.idle_s is not None else (None, None)
        ends = terms.find_ends(lease, left, idle_s, spent)
        return {
            "lease": terms.render_lease(lease),
            "idle_s": idle_s,
            "why": why,
            "ends": [list(end) for end in ends],
            "spent_usd": spent,
            "saved": self.state.is_kept,
        }

    def run(self) -> None:
        """Waits for the end of the lease, and ends the node."""
        waiting = [self.keep_up, self.keep_looking]
        asking = control.open_control()
        asked_at: Optional[float] = None
        while True:
            waiting = [work for work in waiting if system.start_thread(work) is None]
            lease, left, spent = self.state.read()
            idle_s = self.find_idle()[0] if lease.idle_s is not None else None
            ends = terms.find_ends(lease, left, idle_s, spent)
            self.close(lease, ends, idle_s)
            for end in ends:
                self.warn(lease, end)
            if asked_at is None or system.boot_clock() - asked_at >= self.look_every_s():
                asked_at = system.boot_clock()
                if self.neighbors.socket is None:
                    self.neighbors.open()
                self.neighbors.ask(idle_s)
            timeout = min([1.0] + [max(end.left_s, 0.05) for end in ends])
            sockets = [one for one in (asking, self.neighbors.socket) if one is not None]
            ready = select.select(sockets, [], [], timeout)[0]
            if asking in ready:
                self.answer(asking)
            if self.neighbors.socket in ready:
                own_s = self.looks.read(system.boot_clock())[0] if lease.idle_s is not None else 0.0
                self.neighbors.listen(own_s, system.boot_clock())

    def close(self, lease: terms.Lease, ends: List[terms.End], idle_s: Optional[float]) -> None:
        """Ends the node if its lease has ended, after the nodes that cannot end themselves."""
        if not ends or ends[0].left_s > 0:
            if self.closing is not None:
                self.closing.cancelled = True
            self.closing = self.over_at = None
            return
        if self.over_at is None:
            self.over_at = system.boot_clock()
            self.hurry.set()
        waited_s = system.boot_clock() - self.over_at
        if self.tag_at >= self.over_at or waited_s >= (BOOT_S if self.is_new() else TAG_S):
            if self.closing is None:
                # Nodes that have not looked since then end as well, without waiting for their next look.
                self.neighbors.tell(idle_s)
                self.closing = peers.Closing(self.cluster, self.endpoint, ends[0].why, lease, self.neighbors)
            if self.closing.is_done():
                self.end(self.closing.why)

    # -- the user's machine

    def answer(self, asking: Any) -> None:
        """Answers a `set` or `show`."""
        peer, _ = asking.accept()
        with peer:
            peer.settimeout(2.0)
            try:
                asked = json.loads(peer.recv(4096).decode("utf-8"))
                if asked.get("set"):
                    self.state.offer(asked["set"])
                    self.looks.begin_again()  # anyone who changes the lease uses the cluster
                    self.warned.clear()
                    self.state.keep()
                peer.sendall(json.dumps(self.describe()).encode("utf-8") + b"\n")
            except (OSError, ValueError, AttributeError) as error:
                system.say("a question was lost: {}".format(error))

    # -- warnings

    def warn(self, lease: terms.Lease, end: terms.End) -> None:
        """Warns of an end once; warns again if the end was postponed."""
        if not terms.is_near(lease, end):
            self.warned.pop(end.why, None)
        elif end.why not in self.warned:
            self.warned[end.why] = end.left_s
            text = warn.render_warning(self.cluster, lease, end)
            system.start_thread(warn.warn_all, self.root, self.cluster, end, text)


def work(cluster: str, armed: str, endpoint: str) -> None:
    """Runs the agent in the background."""
    Agent(cluster, armed, endpoint).run()


def main() -> int:
    """Runs the command of the command line."""
    verb, words = sys.argv[1], sys.argv[2:]
    if verb == "boot":
        armed = start.Armed(*words)
        start.start(armed, work)
        start.install(sys.argv[0], armed)
    elif verb == "again":
        start.start(start.read_armed(), work)
    else:
        message = {"set": words[0]} if verb == "set" else {"show": True}
        try:
            found = control.ask(message)
        except (OSError, ValueError):
            try:
                armed = start.read_armed()
            except (OSError, ValueError):
                armed = start.Armed("", "", "")
            start.start(armed, work)
            found = control.ask_soon(message)
        sys.stdout.write(json.dumps(found) + "\n")
    return 0
