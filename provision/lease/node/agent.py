"""Ends this node at the end of its cluster's lease. The user data starts it at each boot, as root.

    boot LEASE CLUSTER   keeps a copy of this program for the next boot, and starts it in the background
    again                the same with what the last `boot` kept
    set LEASE            makes the running program use another lease; starts it if it does not run
    show                 asks it
    set and show answer with a line of JSON: {"lease", "idle_s", "why", "ends", "spent_usd", "saved"}

It needs no credentials, head, network or space on the disk. A change of the lease is kept in SAVED, and the newest of
these counts: user data, SAVED, the instance's tag cluster:lease in its metadata, and what `set` got. If SAVED cannot be
written or read, the others count.

The deadline is counted twice, by the time of day and by a clock that does not jump, and the first one counts. Idle
time is that of the cluster: the head, the only one that knows the other nodes, asks them every ASK_EVERY_S for how long
they have been idle, and tells them the least of it. A node that no head has ever asked decides by itself.

Python 3.6 and later, standard library only.
"""

import ctypes
import fcntl
import glob
import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from provision.lease.node import activity, terms

RUN = "/run/cluster"
EVENTS = "events"  # below RUN: one file for each warning
SAVED = "/var/lib/cluster-lease"
PER_BOOT = "/var/lib/cloud/scripts/per-boot/cluster-lease"
UNIT = "/etc/systemd/system/cluster-lease.service"
PORT = 8477  # UDP, between the nodes
METADATA = "169.254.169.254"
TAG = "cluster:lease"
ASK_EVERY_S = 15.0
KEEP_EVERY_S = 60.0
FORCE_AFTER_S = 20.0
"""How long `shutdown` may take; then the power goes off without it."""
POWER_OFF = 0x4321FEDC  # reboot(2)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PYTHON = sys.executable or "/usr/bin/python3"
EVENT_NAMES = {"lifetime": "lease-ending", "idle": "idle-ending", "budget": "budget-reached"}
CLOCK_BOOTTIME = 7  # clock_gettime(2); Python has it since 3.7


def boot_clock() -> float:
    """Seconds since the boot; it does not jump, and counts time in suspend."""
    return time.clock_gettime(CLOCK_BOOTTIME)


class State(object):
    """The lease, and what the cluster has cost. Thread-safe.

    folder: where a change is kept. armed: the lease of the user data.
    """

    def __init__(self, folder: str, armed: str) -> None:
        self.path = os.path.join(folder, "state.json")
        self.lock = threading.Lock()
        self.is_kept = True
        kept = self._read()
        texts = [armed, kept.get("lease", "")]
        self.lease = terms.find_newest(texts) or terms.Lease()
        now = time.time()
        self.spent_usd = terms.spent_at(self.lease, now)
        if kept.get("lease") and isinstance(kept.get("spent_usd"), (int, float)):
            # It was off since then, or its program did not run.
            rate = self.lease.stopped_usd_per_hour or 0.0
            self.spent_usd = kept["spent_usd"] + max(now - kept["at"], 0.0) * rate / 3600.0
        self._spent_clock = boot_clock()
        self._until_clock: Optional[float] = None
        self._count_from_now()

    def _read(self) -> Dict[str, Any]:
        try:
            with open(self.path) as stream:
                kept = json.loads(stream.read(activity.MAX_BYTES))
            return kept if isinstance(kept["lease"], str) and isinstance(kept["at"], (int, float)) else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _count_from_now(self) -> None:
        until = self.lease.until
        self._until_clock = None if until is None else boot_clock() + until - time.time()

    def offer(self, text: str) -> bool:
        """Use a lease if it is newer. Returns whether it is."""
        offered = terms.parse_lease(text)
        with self.lock:
            if offered is None or offered.set_at <= self.lease.set_at:
                return False
            self._add_up()
            self.lease = offered
            self._count_from_now()
        return True

    def read(self) -> Tuple[terms.Lease, Optional[float], float]:
        """The lease, the seconds to its deadline, and what the cluster has cost."""
        with self.lock:
            self._add_up()
            left = None
            if self.lease.until is not None and self._until_clock is not None:
                left = min(self.lease.until - time.time(), self._until_clock - boot_clock())
            return self.lease, left, self.spent_usd

    def _add_up(self) -> None:
        clock = boot_clock()
        self.spent_usd += (clock - self._spent_clock) * (self.lease.usd_per_hour or 0.0) / 3600.0
        self._spent_clock = clock

    def keep(self) -> None:
        """Write it to the disk, if there is space."""
        lease, _, spent = self.read()
        text = json.dumps({"lease": terms.render_lease(lease), "spent_usd": spent, "at": time.time()})
        try:
            write_whole(self.path, text)
            self.is_kept = True
        except OSError as error:
            self.is_kept = False
            say("cannot keep the lease: {}".format(error))


class Neighbors(object):
    """For how long the other nodes have been idle, as far as this node knows. Thread-safe.

    Only the head has known_hosts with the others' addresses: it asks, and they answer.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.lock = threading.Lock()
        self.heard: Dict[str, Tuple[float, float]] = {}  # address -> when, and its idle time then

    def find_asked(self) -> List[str]:
        """The addresses of the other nodes, on the head."""
        found = []
        for home in activity.find_homes(self.root):
            try:
                with open(os.path.join(home, ".cluster", "ssh", "known_hosts")) as stream:
                    found += [line.split()[0] for line in stream if line.strip()]
            except OSError:
                continue  # not the head, or not set up
        return sorted(set(found))

    def note(self, address: str, idle_s: float, clock: float) -> None:
        """What a node has said."""
        with self.lock:
            self.heard[address] = (clock, idle_s)

    def find_least(self, asked: List[str], own: List[str], clock: float) -> Optional[Tuple[float, str]]:
        """The least idle time of the others, and whose; None without others.

        A node that was heard, and is silent, is dead or cut off: its last word ages. One that was never heard may be
        busy.
        """
        with self.lock:
            heard = dict(self.heard)
        times = [(idle_s + max(clock - at, 0.0), address) for address, (at, idle_s) in heard.items()]
        times += [(0.0, address) for address in asked if address not in heard and address not in own]
        return min(times) if times else None


class Agent(object):
    """The program in the background. root: of the file system that it looks at; end: ends the node."""

    def __init__(
        self, cluster: str, armed: str, root: str = "/", end: "Optional[Callable[[str], None]]" = None
    ) -> None:
        self.cluster = cluster
        self.root = root
        self.end = end or end_node
        self.state = State(os.path.join(root, SAVED.lstrip("/")), armed)
        self.activity = activity.Activity(root)
        self.looks = activity.IdleTime(longest_s=2 * ASK_EVERY_S)
        self.neighbors = Neighbors(root)
        self.asked: List[str] = []
        self.own: List[str] = []
        self.warned: Dict[str, float] = {}
        self.is_deaf = False

    def look_every_s(self) -> float:
        """How often to look: more often for a short idle time."""
        idle_s = self.state.lease.idle_s
        return ASK_EVERY_S if idle_s is None else min(max(idle_s / 20.0, 1.0), ASK_EVERY_S)

    def keep_looking(self) -> None:
        """Look who uses the node, for ever. A look may hang: the deadline does not wait for it."""
        while True:
            if self.state.lease.idle_s is not None:
                try:
                    use = self.activity.look(time.time(), boot_clock())
                    self.asked = self.neighbors.find_asked()
                except Exception as error:  # noqa: BLE001 - whatever it is, it is not known whether the node is idle
                    use = activity.Use("it cannot be determined: {!r}".format(error))
                self.looks.note(use, boot_clock())
            time.sleep(self.look_every_s())

    def keep_up(self) -> None:
        """Read the tag, and write the state, for ever."""
        while True:
            text = read_tag()
            if text is not None and self.state.offer(text):
                say("the tag has another lease: {}".format(text))
            self.state.keep()
            time.sleep(KEEP_EVERY_S)

    def find_idle(self) -> Tuple[float, Optional[str]]:
        """For how long the cluster has been idle, as this node knows it, and why it is not."""
        idle_s, why = self.looks.read(boot_clock())
        least = self.neighbors.find_least(self.asked, self.own, boot_clock())
        if self.is_deaf and self.asked:
            return 0.0, "the other nodes cannot be asked: UDP port {} is taken".format(PORT)
        if least is not None and least[0] < idle_s:
            idle_s = least[0]
            why = why or "the node at {} is not idle".format(least[1]) if idle_s < 2 * ASK_EVERY_S else why
        return idle_s, why

    def describe(self) -> Dict[str, Any]:
        """The answer to `show`."""
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
        """Wait for the end of the lease, and end the node."""
        for work in (self.keep_looking, self.keep_up):
            threading.Thread(target=work, daemon=True).start()
        control, others = open_control(), self.open_others()
        asked_at: Optional[float] = None
        while True:
            lease, left, spent = self.state.read()
            idle_s = self.find_idle()[0] if lease.idle_s is not None else None
            ends = terms.find_ends(lease, left, idle_s, spent)
            if ends and ends[0].left_s <= 0:
                # Those that have not looked for so long end as well, without waiting for their next look.
                self.tell_others(others, idle_s)
                self.end(ends[0].why)
            for end in ends:
                self.warn(lease, end)
            if asked_at is None or boot_clock() - asked_at >= self.look_every_s():
                asked_at = boot_clock()
                self.ask_others(others, idle_s)
            timeout = min([1.0] + [max(end.left_s, 0.05) for end in ends])
            ready = select.select([one for one in (control, others) if one is not None], [], [], timeout)[0]
            if control in ready:
                self.answer(control)
            if others in ready:
                self.listen(others)

    # -- the user's machine

    def answer(self, control: Any) -> None:
        """A `set` or `show`."""
        peer, _ = control.accept()
        with peer:
            peer.settimeout(2.0)
            try:
                asked = json.loads(peer.recv(4096).decode("utf-8"))
                if asked.get("set"):
                    self.state.offer(asked["set"])
                    self.looks.begin_again()  # whoever changes the lease uses the cluster
                    self.warned.clear()
                    self.state.keep()
                peer.sendall(json.dumps(self.describe()).encode("utf-8") + b"\n")
            except (OSError, ValueError, AttributeError) as error:
                say("a question was lost: {}".format(error))

    # -- the other nodes

    def open_others(self) -> Optional[socket.socket]:
        """The socket for the other nodes."""
        others = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        others.settimeout(0.0)
        try:
            others.bind(("", PORT))
        except OSError as error:
            say("cannot ask other nodes: {}".format(error))
            others.close()
            self.is_deaf = True
            return None
        return others

    def ask_others(self, others: Optional[socket.socket], idle_s: Optional[float]) -> None:
        """Tell the other nodes for how long the cluster has been idle, and so ask them; only the head knows them."""
        self.own = [address for address in self.asked if is_own(address)]
        self.tell_others(others, idle_s)

    def tell_others(self, others: Optional[socket.socket], idle_s: Optional[float]) -> None:
        """Send the head's word."""
        for address in self.asked:
            if address not in self.own:
                send(others, address, {"ask": True, "idle_s": idle_s or 0.0})

    def listen(self, others: Any) -> None:
        """A question of the head, or another node's answer."""
        try:
            data, (address, port) = others.recvfrom(2048)
            said = json.loads(data.decode("utf-8"))
            idle_s, is_question = float(said["idle_s"]), bool(said.get("ask"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # not one of ours
        if port != PORT or not (is_question or address in self.asked) or not idle_s >= 0:
            return
        self.neighbors.note(address, idle_s, boot_clock())
        if is_question:
            own = self.looks.read(boot_clock())[0] if self.state.lease.idle_s is not None else 0.0
            send(others, address, {"idle_s": own})

    # -- warnings

    def warn(self, lease: terms.Lease, end: terms.End) -> None:
        """Warn of an end, once; again if it was put off."""
        if not terms.is_near(lease, end):
            self.warned.pop(end.why, None)
        elif end.why not in self.warned:
            self.warned[end.why] = end.left_s
            text = render_warning(self.cluster, lease, end)
            threading.Thread(target=warn_all, args=(self.root, self.cluster, end, text), daemon=True).start()


def render_warning(cluster: str, lease: terms.Lease, end: terms.End) -> str:
    """What people are told."""
    what = {
        "lifetime": "its lifetime ends",
        "idle": "it has been idle",
        "budget": "its budget of ${:g} is nearly spent".format(lease.budget_usd or 0.0),
    }[end.why]
    ending = "stop" if lease.then == "stop" else "end"
    minutes = max(end.left_s, 0.0) / 60.0
    left = "{:.0f} minutes".format(minutes) if minutes >= 1.5 else "{:.0f} seconds".format(max(end.left_s, 0.0))
    remedy = {
        "lifetime": "cluster lease +4h",
        "idle": "cluster lease --idle 4h",
        "budget": "cluster lease --budget USD",
    }
    return "cluster {}: all nodes {} in {}, because {} ({} changes it)".format(
        cluster, ending, left, what, remedy[end.why]
    )


def warn_all(root: str, cluster: str, end: terms.End, text: str) -> None:
    """Warn whoever is logged in, the logs of running jobs, and whoever [notify] names."""
    say(text)
    at = time.time()
    folder = os.path.join(root, RUN.lstrip("/"), EVENTS)
    event = {"event": EVENT_NAMES[end.why], "cluster": cluster, "at": at, "text": text}
    try:
        os.makedirs(folder, exist_ok=True)
        write_whole(os.path.join(folder, "{}-{:.0f}.json".format(event["event"], at)), json.dumps(event))
    except OSError as error:
        say("cannot write the event: {}".format(error))
    for terminal in glob.glob(os.path.join(glob.escape(root), "dev", "pts", "[0-9]*")):
        try:
            handle = os.open(terminal, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            continue  # it has been closed
        try:
            os.write(handle, "\r\n{}\r\n".format(text).encode("utf-8"))
        except OSError:
            continue  # nobody reads it
        finally:
            os.close(handle)
    for home, record in activity.find_running_jobs(root, list(activity.find_processes(root))):
        say_in_log(home, record, text)


def say_in_log(home: str, record: Dict[str, Any], text: str) -> None:
    """Write a line to the log of a running job."""
    job, code, python = record.get("id"), record.get("code"), record.get("python")
    if not (isinstance(job, str) and isinstance(code, str) and isinstance(python, str)):
        return
    program = os.path.join(home, ".cluster", "tree", code, "train", "node")
    owner = os.stat(home)

    def become_owner() -> None:
        os.setgid(owner.st_gid)
        os.setuid(owner.st_uid)

    try:
        done = subprocess.run(
            [python, "-Es", program, "jobs", "say", job, text],
            env={"HOME": home, "PATH": PATH},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=become_owner,
            timeout=60,
            check=True,
        )
        if "error" in json.loads(done.stdout.decode("utf-8")):
            say("cannot warn job {}: {!r}".format(job, done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        say("cannot warn job {}: {}".format(job, error))


# -- the end


def end_node(why: str) -> None:
    """Switch this node off. Does not return."""
    say("the lease has ended ({}): switching this node off".format(why))
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)  # until the power is off, this program must go on
    began = boot_clock()
    try:
        subprocess.Popen(
            ["shutdown", "-P", "now"],
            env={"PATH": PATH},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while boot_clock() - began < FORCE_AFTER_S:
            time.sleep(0.5)
    except OSError as error:
        say("shutdown does not start: {}".format(error))
    while True:
        syncing = threading.Thread(target=os.sync, daemon=True)
        syncing.start()
        syncing.join(5.0)  # a hung file system must not keep the node alive
        ctypes.CDLL(None).reboot(POWER_OFF)
        try:
            with open("/proc/sysrq-trigger", "w") as stream:
                stream.write("o")
        except OSError as error:
            say("the power does not go off: {}".format(error))
        time.sleep(5.0)


# -- small things


def say(text: str) -> None:
    """A line for the console; nobody may read it."""
    try:
        sys.stderr.write("cluster-lease: {}\n".format(text))
        sys.stderr.flush()
    except (OSError, ValueError):
        return


def write_whole(path: str, text: str, mode: int = 0o644) -> None:
    """Write a file, whole or not at all. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = "{}.{}".format(path, os.getpid())
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(partial, path)
    except OSError:
        try:
            os.unlink(partial)
        except OSError:
            pass
        raise


def is_own(address: str) -> bool:
    """Whether an address is this node's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.bind((address, 0))
        except OSError:
            return False
    return True


def send(others: Optional[socket.socket], address: str, message: Dict[str, Any]) -> None:
    """Send a datagram; it may get lost."""
    if others is None:
        return
    try:
        others.sendto(json.dumps(message).encode("utf-8"), (address, PORT))
    except OSError:
        return  # no route now: the next one follows


def read_tag() -> Optional[str]:
    """The instance's tag with the lease, from its metadata; None without a metadata service."""
    connection = http.client.HTTPConnection(METADATA, timeout=5)
    try:
        connection.request("PUT", "/latest/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        answer = connection.getresponse()
        token = answer.read(1024).decode("ascii")
        if answer.status != 200:
            return None
        path = "/latest/meta-data/tags/instance/{}".format(TAG)
        connection.request("GET", path, headers={"X-aws-ec2-metadata-token": token})
        answer = connection.getresponse()
        text = answer.read(4096).decode("utf-8", "replace")
        found = text if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        found = None
    finally:
        connection.close()
    return found


def open_control() -> Any:
    """The socket for `set` and `show`, for root alone; None if it cannot be made."""
    path = os.path.join(RUN, "lease.sock")
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        draft = path + ".new"
        if os.path.exists(draft):
            os.unlink(draft)
        before = os.umask(0o177)
        try:
            control.bind(draft)
        finally:
            os.umask(before)
        control.listen(8)
        os.rename(draft, path)  # once it is there, it answers
    except OSError as error:
        say("cannot listen: {}".format(error))
        return None
    return control


def ask(message: Dict[str, Any]) -> Dict[str, Any]:
    """Ask the running program. Raises OSError, ValueError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(10.0)
        peer.connect(os.path.join(RUN, "lease.sock"))
        peer.sendall(json.dumps(message).encode("utf-8"))
        said = b""
        while not said.endswith(b"\n"):
            piece = peer.recv(4096)
            if not piece:
                break
            said += piece
    return dict(json.loads(said.decode("utf-8")))


def install(program: str, text: str, cluster: str) -> None:
    """Keep a copy for a boot whose user data cannot be read."""
    try:
        os.makedirs(SAVED, mode=0o700, exist_ok=True)
        shutil.copyfile(program, os.path.join(SAVED, "new.py"))
        os.rename(os.path.join(SAVED, "new.py"), os.path.join(SAVED, "lease.py"))
        write_whole(os.path.join(SAVED, "armed"), "{}\n{}\n".format(text, cluster))
        command = "{} -Es {}/lease.py again".format(PYTHON, SAVED)
        write_whole(PER_BOOT, "#!/bin/sh\nexec {}\n".format(command), 0o755)
        if os.path.isdir("/run/systemd/system"):
            write_whole(
                UNIT,
                "[Unit]\nDescription=Ends this node at the end of its cluster's lease\n"
                "[Service]\nType=oneshot\nRemainAfterExit=yes\nKillMode=process\nExecStart={}\n"
                "[Install]\nWantedBy=multi-user.target\n".format(command),
            )
            link = os.path.join(os.path.dirname(UNIT), "multi-user.target.wants", os.path.basename(UNIT))
            if not os.path.islink(link):
                os.symlink(UNIT, link)
    except OSError as error:
        say("no copy for the next boot: {}".format(error))


def start(text: str, cluster: str) -> None:
    """Start the program in the background, unless it runs. A second process starts it again if it is killed."""
    os.makedirs(RUN, exist_ok=True)
    lock = os.open(os.path.join(RUN, "lease.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return
    sys.stdout.flush()
    if os.fork():
        os.close(lock)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        log = os.open(os.path.join(RUN, "lease.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError:
        log = null
    os.dup2(log, 2)
    try:
        with open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("-1000")
    except OSError:
        pass  # not allowed in every namespace
    while True:
        child = os.fork()
        if not child:
            try:
                Agent(cluster, text).run()
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        say("started again")
        time.sleep(1.0)


def read_armed() -> Tuple[str, str]:
    """What the last `boot` kept: the lease and the cluster's name. Raises OSError, ValueError."""
    with open(os.path.join(SAVED, "armed")) as stream:
        text, cluster = stream.read(4096).splitlines()
    return text, cluster


def main() -> int:
    """Do what the command line says."""
    verb, words = sys.argv[1], sys.argv[2:]
    if verb == "boot":
        start(words[0], words[1])
        install(sys.argv[0], words[0], words[1])
    elif verb == "again":
        start(*read_armed())
    else:
        message = {"set": words[0]} if verb == "set" else {"show": True}
        try:
            found = ask(message)
        except (OSError, ValueError):
            try:
                start(*read_armed())
            except (OSError, ValueError):
                start("", "")
            deadline = boot_clock() + 10.0
            while not os.path.exists(os.path.join(RUN, "lease.sock")) and boot_clock() < deadline:
                time.sleep(0.05)
            found = ask(message)
        sys.stdout.write(json.dumps(found) + "\n")
    return 0
