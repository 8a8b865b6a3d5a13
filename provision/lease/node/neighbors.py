"""The other nodes: for how long they have been idle, and whether they live. Datagrams between the lease programs.

    {"ask": true, "idle_s": S}   the head says for how long the cluster has been idle, and asks a node
    {"idle_s": S}                its answer
    {"there": true}              a node that ends asks another one whether it lives
    {"here": true}               its answer

Python 3.6 and later, standard library only.
"""

import json
import os
import socket
import threading
from typing import Any, Dict, List, Optional, Tuple

from provision.lease.node import activity, system

PORT = 8477  # UDP


class Neighbors(object):
    """For how long the other nodes have been idle, as far as this node knows. Thread-safe.

    Only the head has known_hosts with the others' addresses: it asks, and they answer. asked: whom it asks.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.lock = threading.Lock()
        self.heard: Dict[str, Tuple[float, float]] = {}  # address -> when, and its idle time then
        self.lives: Dict[str, float] = {}  # address -> when it said so
        self.asked: List[str] = []
        self.own: List[str] = []
        self.is_deaf = False
        self.socket: Optional[socket.socket] = None

    def open(self) -> None:
        """Begin to listen."""
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.settimeout(0.0)
        try:
            one.bind(("", PORT))
            self.socket, self.is_deaf = one, False
        except OSError as error:
            system.say("cannot ask other nodes: {}".format(error))
            one.close()
            self.is_deaf = True

    def find_asked(self) -> None:
        """Find the addresses of the other nodes, on the head."""
        found = []
        for home in activity.find_homes(self.root):
            try:
                with open(os.path.join(home, ".cluster", "ssh", "known_hosts")) as stream:
                    found += [line.split()[0] for line in stream if line.strip()]
            except OSError:
                continue  # not the head, or not set up
        self.asked = sorted(set(found))

    def ask(self, idle_s: Optional[float]) -> None:
        """Tell the other nodes for how long the cluster has been idle, and so ask them; only the head knows them."""
        self.own = [address for address in self.asked if is_own(address)]
        self.tell(idle_s)

    def tell(self, idle_s: Optional[float]) -> None:
        """Send the head's word."""
        for address in self.asked:
            if address not in self.own:
                self._send(address, {"ask": True, "idle_s": idle_s or 0.0})

    def ping(self, address: str) -> None:
        """Ask a node whether it lives."""
        self._send(address, {"there": True})

    def has_heard(self, address: str, since: float) -> bool:
        """Whether a node has said since then that it lives, or has asked this one."""
        with self.lock:
            return self.lives.get(address, -1.0) >= since

    def listen(self, own_idle_s: float, clock: float) -> None:
        """A question, or another node's answer. own_idle_s: for how long this node has been idle."""
        if self.socket is None:
            return
        try:
            data, (address, port) = self.socket.recvfrom(2048)
            said = json.loads(data.decode("utf-8"))
            idle_s = float(said["idle_s"]) if "idle_s" in said else None
            asks, lives, looks = (said.get(word) is True for word in ("ask", "here", "there"))
        except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return  # not one of ours
        if port != PORT:
            return
        if looks or lives:
            with self.lock:
                self.lives[address] = clock
            if looks:
                self._send(address, {"here": True})
        elif idle_s is not None and 0 <= idle_s < float("inf") and (asks or address in self.asked):
            with self.lock:
                self.heard[address] = (clock, idle_s)
            if asks:
                self._send(address, {"idle_s": own_idle_s})

    def find_least(self, clock: float) -> Optional[Tuple[float, str]]:
        """The least idle time of the others, and whose; None without others.

        A node that was heard, and is silent, is dead or cut off: its last word ages. One that was never heard may be
        busy.
        """
        with self.lock:
            heard = dict(self.heard)
        times = [(idle_s + max(clock - at, 0.0), address) for address, (at, idle_s) in heard.items()]
        times += [(0.0, address) for address in self.asked if address not in heard and address not in self.own]
        return min(times) if times else None

    def _send(self, address: str, message: Dict[str, Any]) -> None:
        """Send a datagram; it may get lost."""
        if self.socket is None:
            return
        try:
            self.socket.sendto(json.dumps(message).encode("utf-8"), (address, PORT))
        except (OSError, UnicodeError):
            return  # no route now: the next one follows


def is_own(address: str) -> bool:
    """Whether an address is this node's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.bind((address, 0))
        except (OSError, UnicodeError):
            return False
    return True
