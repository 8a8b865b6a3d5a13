"""Determines whether a node is in use: jobs, logins, notebook kernels, CPU and GPU.

An unknown state counts as use. `root` is "/"; tests use other folders. Linux. Python 3.6 and later, standard library
only.
"""

import glob
import json
import os
import re
import ssl
import subprocess
import urllib.request
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

BUSY_CORES = 0.25
"""CPU time, in cores. The services of an idle node use less than a tenth of it."""
BUSY_GPU_PERCENT = 5
ANSWER_S = 20.0
AHEAD_S = 60.0
"""A job's end further in the future than this comes from a wrong clock: it would count as use until then."""
MAX_BYTES = 1 << 20
_LOGIN = re.compile(r"^sshd(?:-session)?: ([^ @]+)@(\S+)")
_OTHER_LOGINS = ("ssm-session-worker",)
_BATCH_JOBS = ("slurmstepd",)
_FIRST_HUMAN_UID, _LAST_HUMAN_UID = 1000, 60000


class Process(NamedTuple):
    """A process. started: in clock ticks since the boot. ticks: its CPU time, including its ended children."""

    pid: int
    started: int
    ticks: int
    name: str
    command: str


class Use(NamedTuple):
    """Why a node is in use; None if it is not. used_s_ago: when it last was, from its records; None if unknown."""

    why: Optional[str]
    used_s_ago: Optional[float] = None


class Activity:
    """Looks at a node repeatedly. CPU time is measured between two looks.

    run: runs a command, and returns its output; raises OSError, subprocess.SubprocessError. fetch: gets a URL's JSON;
    raises OSError, ValueError. Every call may take long: a file system may hang.
    """

    def __init__(
        self,
        root: str = "/",
        run: Optional[Callable[[List[str]], str]] = None,
        fetch: Optional[Callable[[str], Any]] = None,
    ) -> None:
        self.root = root
        self.run = run or _run
        self.fetch = fetch or _fetch
        self._before: Optional[Tuple[float, Dict[Tuple[int, int], int]]] = None

    def look(self, now: float, clock: float) -> Use:
        """Returns who uses the node. now: seconds since 1970. clock: seconds of a clock that does not jump."""
        processes = list(find_processes(self.root))
        cores = self._count_cores(processes, clock)  # at each look, even if something else is in use
        job, ended_s_ago = find_job(self.root, processes, now)
        why = job or find_login(processes) or find_busy_kernel(self.root, processes, self.fetch)
        if why is None and cores is None:
            why = "the CPU has not been measured yet"
        if why is None and cores is not None and cores >= BUSY_CORES:
            why = "the CPU is busy: {:.1f} cores".format(cores)
        if why is None:
            why = find_busy_gpu(self.root, self.run)
        return Use(why, ended_s_ago)

    def _count_cores(self, processes: List[Process], clock: float) -> Optional[float]:
        """Returns how many cores all processes have used since the last look; None at the first one."""
        ticks = {(one.pid, one.started): one.ticks for one in processes}
        before, self._before = self._before, (clock, ticks)
        if before is None or clock <= before[0]:
            return None
        used = sum(max(now - before[1].get(key, 0), 0) for key, now in ticks.items())
        return used / float(os.sysconf("SC_CLK_TCK")) / (clock - before[0])


def find_processes(root: str) -> Iterator[Process]:
    """Yields the processes of this node. Kernel threads have an empty command line."""
    proc = os.path.join(root, "proc")
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        try:
            stat = _read(os.path.join(proc, entry, "stat"))
            command = _read(os.path.join(proc, entry, "cmdline"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        fields = stat[
            stat.rindex(")") + 2 :
        ].split()  # proc(5): utime is field 14, and state, field 3, is the first here
        yield Process(
            int(entry), int(fields[19]), sum(map(int, fields[11:15])), name, command.replace("\0", " ").strip()
        )


def find_job(root: str, processes: List[Process], now: float) -> Tuple[Optional[str], Optional[float]]:
    """Finds a job that has not ended, or the reason why that is unknown.

    Also returns how many seconds ago the last job ended, or None. A job whose supervisor is dead, or which waits for
    nodes, makes no progress: it does not count.
    """
    alive = {(one.pid, one.started) for one in processes}
    batch = next((one for one in processes if one.name in _BATCH_JOBS), None)
    busy = None if batch is None else "a batch job runs: {}".format(batch.command)
    ended: List[float] = []
    for path, record in _find_records(root):
        job = os.path.basename(os.path.dirname(path))
        if record is None:
            busy = busy or "the record of job {} cannot be read".format(job)
        elif record.get("state") not in ("done", "failed", "stopped", "waiting"):
            if _is_supervised(record, alive):
                busy = busy or "job {} is {}".format(job, record.get("state"))
        elif isinstance(record.get("ended_at"), (int, float)) and record["ended_at"] <= now + AHEAD_S:
            ended.append(max(now - record["ended_at"], 0.0))
    return busy, min(ended) if ended else None


def find_running_jobs(root: str, processes: List[Process]) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """Yields the home and the record of each job that has not ended."""
    alive = {(one.pid, one.started) for one in processes}
    for path, record in _find_records(root):
        if record and record.get("state") not in ("done", "failed", "stopped") and _is_supervised(record, alive):
            yield os.path.normpath(os.path.join(path, *[os.pardir] * 4)), record


def _find_records(root: str) -> Iterator[Tuple[str, Optional[Dict[str, Any]]]]:
    for home in find_homes(root):
        for folder in sorted(glob.glob(os.path.join(glob.escape(home), ".cluster", "jobs", "*"))):
            path = os.path.join(folder, "record.json")
            try:
                record = json.loads(_read(path))
            except (FileNotFoundError, NotADirectoryError):
                continue  # it is being submitted, which is a login; or it is a lock file, not a job
            except (OSError, ValueError):
                record = None
            yield path, record if isinstance(record, dict) else None


def _is_supervised(record: Dict[str, Any], alive: Any) -> bool:
    supervisor = record.get("supervisor")
    if not isinstance(supervisor, dict) or supervisor.get("start_time") is None:
        return True  # unknown
    return (supervisor.get("pid"), supervisor["start_time"]) in alive


def find_homes(root: str) -> List[str]:
    """Returns the home folders of root and of human users."""
    homes = []
    for line in _read(os.path.join(root, "etc", "passwd")).splitlines():
        fields = line.split(":")
        if len(fields) == 7 and (fields[2] == "0" or _FIRST_HUMAN_UID <= int(fields[2]) <= _LAST_HUMAN_UID):
            homes.append(os.path.join(root, fields[5].lstrip("/")))
    return homes


def find_login(processes: List[Process]) -> Optional[str]:
    """Returns who is logged in. Commands over ssh, copies and set-ups are logins, too."""
    for one in processes:
        found = _LOGIN.match(one.command)
        if found is not None:
            return "{} is logged in".format(found.group(1))
        if one.name in _OTHER_LOGINS or one.name.startswith(_OTHER_LOGINS[0][:15]):
            return "somebody is logged in through Session Manager"
        if one.name == "login" and one.command.startswith("login -- "):
            return "{} is logged in at the console".format(one.command[9:])
    return None


def find_busy_kernel(root: str, processes: List[Process], fetch: Callable[[str], Any]) -> Optional[str]:
    """Returns a busy notebook kernel, or a notebook server that does not answer. Skips servers that have ended."""
    pids = {one.pid for one in processes}
    for home in find_homes(root):
        pattern = os.path.join(glob.escape(home), ".local/share/jupyter/runtime", "*server-*.json")
        for path in sorted(glob.glob(pattern)):
            found = re.search(r"(?:jp|nb)server-([0-9]+)\.json$", path)
            if found is None or int(found.group(1)) not in pids:
                continue
            try:
                server = json.loads(_read(path))
                url = "{}api/kernels?token={}".format(_local_url(server), server.get("token") or "")
                kernels = fetch(url)
                busy = [kernel for kernel in kernels if kernel["execution_state"] not in ("idle", "dead")]
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                return "the notebook server {} does not answer".format(found.group(1))
            if busy:
                return "a notebook kernel is {}".format(busy[0]["execution_state"])
    return None


def _local_url(server: Dict[str, Any]) -> str:
    """Returns the server's URL on this node. Its own URL may have the host's name, and a browser's port."""
    scheme = "https" if server.get("secure") else "http"
    return "{}://127.0.0.1:{}{}".format(scheme, server["port"], server.get("base_url") or "/")


def find_busy_gpu(root: str, run: Callable[[List[str]], str]) -> Optional[str]:
    """Returns a busy GPU, or the reason why that is unknown; None without GPUs."""
    if not glob.glob(os.path.join(glob.escape(root), "dev", "nvidia[0-9]*")):
        return None
    try:
        said = run(["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"])
        used = [int(line) for line in said.split()]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return "the GPUs cannot be read: {}".format(str(error)[:100])
    if not used:
        return "the GPUs cannot be read"
    return "a GPU is busy: {} %".format(max(used)) if max(used) >= BUSY_GPU_PERCENT else None


def _read(path: str) -> str:
    with open(path, "rb") as stream:
        return stream.read(MAX_BYTES).decode("utf-8", "replace")


def _run(command: List[str]) -> str:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=ANSWER_S,
        check=True,
    ).stdout.decode("utf-8", "replace")


def _fetch(url: str) -> Any:
    # The server runs on this node, and its certificate is often self-signed.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(url, timeout=ANSWER_S) as answer:
        return json.loads(answer.read(MAX_BYTES).decode("utf-8"))


class IdleTime:
    """How long a node has been idle. Only time between looks counts. Pure.

    longest_s: the longest time between two looks that counts. If the node was frozen for longer, the rest is unknown.
    """

    def __init__(self, longest_s: float) -> None:
        self.longest_s = longest_s
        self.idle_s = 0.0
        self.why: Optional[str] = "it has just started"
        self._looked: Optional[float] = None

    def note(self, use: Use, clock: float) -> None:
        """Records the result of a look. clock: seconds of a clock that does not jump."""
        passed = 0.0 if self._looked is None else min(max(clock - self._looked, 0.0), self.longest_s)
        self._looked, self.why = clock, use.why
        self.idle_s = 0.0 if use.why is not None else self.idle_s + passed
        if use.used_s_ago is not None:
            self.idle_s = min(self.idle_s, use.used_s_ago)

    def begin_again(self) -> None:
        """Starts from 0: the node is in use now."""
        self.idle_s = 0.0

    def read(self, clock: float) -> Tuple[float, Optional[str]]:
        """Returns how long the node has been idle, and why it is not. Without a recent look, it counts as busy."""
        if self._looked is not None and clock - self._looked > self.longest_s + 2 * ANSWER_S:
            return 0.0, "it cannot be determined: a look takes longer than {:.0f} s".format(clock - self._looked)
        return self.idle_s, self.why
