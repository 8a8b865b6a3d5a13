"""The lease that counts on this node, and the cost of the cluster.

Python 3.6 and later, standard library only.
"""

import json
import os
import threading
import time
from functools import partial
from typing import Any, Dict, List, Optional, Tuple

from node.lease import activity, system, terms

FILE = "state.json"


class State(object):
    """The lease, and the cost of the cluster. Thread-safe.

    folders: where a change is saved: on the disk, which may be full or hang, and in memory, until the next boot. armed:
    the lease of the user data.
    """

    def __init__(self, folders: List[str], armed: str) -> None:
        self.paths = [os.path.join(folder, FILE) for folder in folders]
        self.lock = threading.Lock()
        self.is_kept = True
        self._writing: Optional[threading.Thread] = None
        found = [system.work_within(system.DISK_S, partial(read_kept, path)) or {} for path in self.paths]
        self.lease = terms.find_newest([armed] + [one.get("lease", "") for one in found]) or terms.Lease()
        kept = max(found, key=lambda one: float(one.get("at", 0.0)))
        now = time.time()
        self.spent_usd = terms.spent_at(self.lease, now)
        if kept:
            # The node was off since then, or its program did not run.
            rate = self.lease.stopped_usd_per_hour or 0.0
            self.spent_usd = kept["spent_usd"] + max(now - kept["at"], 0.0) * rate / 3600.0
        self._spent_clock = system.boot_clock()
        self._until_clock: Optional[float] = None
        self._count_from_now()

    def _count_from_now(self) -> None:
        until = self.lease.until
        self._until_clock = None if until is None else system.boot_clock() + until - time.time()

    def offer(self, text: str) -> bool:
        """Uses a lease if it is newer. Returns whether it is."""
        offered = terms.parse_lease(text)
        with self.lock:
            if offered is None or offered.set_at <= self.lease.set_at:
                return False
            self._add_up()
            self.lease = offered
            self._count_from_now()
        return True

    def read(self) -> Tuple[terms.Lease, Optional[float], float]:
        """Returns the lease, the seconds to its deadline, and the cost of the cluster."""
        with self.lock:
            self._add_up()
            left = None
            if self.lease.until is not None and self._until_clock is not None:
                left = min(self.lease.until - time.time(), self._until_clock - system.boot_clock())
            return self.lease, left, self.spent_usd

    def _add_up(self) -> None:
        clock = system.boot_clock()
        self.spent_usd += (clock - self._spent_clock) * (self.lease.usd_per_hour or 0.0) / 3600.0
        self._spent_clock = clock

    def keep(self) -> None:
        """Saves the lease and the cost wherever there is space. Waits for a hung disk for at most DISK_S."""
        if self._writing is None or not self._writing.is_alive():
            self._writing = system.start_thread(self._write)
        if self._writing is not None:
            self._writing.join(system.DISK_S)
            self.is_kept = self.is_kept and not self._writing.is_alive()

    def _write(self) -> None:
        """Writes the state. The disk, the first of the folders, comes last: it may hang."""
        lease, _, spent = self.read()
        text = json.dumps({"lease": terms.render_lease(lease), "spent_usd": spent, "at": time.time()})
        for path in reversed(self.paths):
            try:
                system.write_whole(path, text)
                self.is_kept = True
            except OSError as error:
                self.is_kept = False
                system.say("cannot keep the lease: {}".format(error))


def read_kept(path: str) -> Dict[str, Any]:
    """Returns the saved state; an empty dict if it does not exist or is damaged."""
    try:
        with open(path) as stream:
            kept = json.loads(stream.read(activity.MAX_BYTES))
        lease, spent, at = str(kept["lease"]), float(kept["spent_usd"]), float(kept["at"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}
    is_sound = terms.parse_lease(lease) is not None and 0 <= spent < float("inf") and 0 <= at < float("inf")
    return {"lease": lease, "spent_usd": spent, "at": at} if is_sound else {}
