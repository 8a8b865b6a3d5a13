"""The other nodes: how long they have been idle, and whether they are alive. Datagrams between the lease programs.

    {"ask": true, "idle_s": S}   the head sends how long the cluster has been idle, and asks a node
    {"idle_s": S}                the node's answer
    {"there": true}              a node that ends asks another one whether it is alive
    {"here": true}               the other node's answer

Python 3.6 and later, standard library only.
"""

import json
import os
import socket
import threading
from typing import Any, Dict, List, Optional, Tuple

from node.lease import activity, system

PORT = 8477  # UDP


class Neighbors(object):
    """How long the other nodes have been idle, as far as this node knows. Thread-safe.

    Only the head has a known_hosts file with the others' addresses: it asks, and they answer. asked: the addresses that
    it asks.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.lock = threading.Lock()
        self.heard: Dict[str, Tuple[float, float]] = {}  # address -> when it was heard, and its idle time then
        self.lives: Dict[str, float] = {}  # address -> when it was last known to be alive
        self.asked: List[str] = []
        self.own: List[str] = []
        self.is_deaf = False
        self.socket: Optional[socket.socket] = None

    def open(self) -> None:
        """Opens the socket, and begins to listen."""
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
        """Finds the addresses of the other nodes, if this node is the head."""
        found = []
        for home in activity.find_homes(self.root):
            try:
                with open(os.path.join(home, ".cluster", "ssh", "known_hosts")) as stream:
                    found += [line.split()[0] for line in stream if line.strip()]
            except OSError:
                continue  # not the head, or not set up
        self.asked = sorted(set(found))

    def ask(self, idle_s: Optional[float]) -> None:
        """Sends the cluster's idle time to the other nodes, and so asks for theirs. Only the head knows the nodes."""
        self.own = [address for address in self.asked if is_own(address)]
        self.tell(idle_s)

    def tell(self, idle_s: Optional[float]) -> None:
        """Sends the cluster's idle time to the other nodes."""
        for address in self.asked:
            if address not in self.own:
                self._send(address, {"ask": True, "idle_s": idle_s or 0.0})

    def ping(self, address: str) -> None:
        """Asks a node whether it is alive."""
        self._send(address, {"there": True})

    def has_heard(self, address: str, since: float) -> bool:
        """Returns whether a node has reported since then that it is alive, or has asked this node."""
        with self.lock:
            return self.lives.get(address, -1.0) >= since

    def listen(self, own_idle_s: float, clock: float) -> None:
        """Handles one datagram: a question, or another node's answer. own_idle_s: how long this node has been idle."""
        if self.socket is None:
            return
        try:
            data, (address, port) = self.socket.recvfrom(2048)
            said = json.loads(data.decode("utf-8"))
            idle_s = float(said["idle_s"]) if "idle_s" in said else None
            asks, lives, looks = (said.get(word) is True for word in ("ask", "here", "there"))
        except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return  # not a datagram of this program
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
        """Returns the shortest idle time of the others, and the node's address; None without others.

        A node that was heard and is now silent is dead or cut off: its last idle time grows. A node that was never
        heard may be busy.
        """
        with self.lock:
            heard = dict(self.heard)
        times = [(idle_s + max(clock - at, 0.0), address) for address, (at, idle_s) in heard.items()]
        times += [(0.0, address) for address in self.asked if address not in heard and address not in self.own]
        return min(times) if times else None

    def _send(self, address: str, message: Dict[str, Any]) -> None:
        """Sends a datagram, which may get lost."""
        if self.socket is None:
            return
        try:
            self.socket.sendto(json.dumps(message).encode("utf-8"), (address, PORT))
        except (OSError, UnicodeError):
            return  # no route now: the next datagram follows


def is_own(address: str) -> bool:
    """Returns whether an address is this node's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.bind((address, 0))
        except (OSError, UnicodeError):
            return False
    return True
