"""Starts a job's processes so that they can be found and ended reliably.

Every process of a job has CLUSTER_JOB_ID in its environment, as do its children and our programs that run it. The
variable identifies them in any session and under any parent. Their descendants belong to the job too, whatever their
environment. `cluster exec` ends its command in the same way.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

JOB_VARIABLE = "CLUSTER_JOB_ID"
TERM_GRACE_S = 2.0
CHECK_EVERY_S = 0.02
ROOT_TIMEOUT_S = 5.0
MOST_OPEN_FILES = 1 << 20
OUR_PROGRAM = "/node agent"  # in the command line of the program that runs a job's processes
ENGINE_PROGRAMS = frozenset(("docker", "podman", "conmon", "crun", "runc", "fuse-overlayfs", "slirp4netns"))
# Command lines of the process with which podman keeps a user's namespace; it belongs to no container, and does not end.
PAUSES = ("catatonit -P", "podman pause", "podman")
# `kill` for root: $1 is the signal. SIGCONT comes second, as in `signal_all`; one that has just ended is no error.
KILL_AS_ROOT = 'number=$1; shift; kill -"$number" "$@"; kill -CONT "$@"'
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER = 1, 36, 0x59616D61  # linux/prctl.h
_LIBC = ctypes.CDLL(None, use_errno=True)
Process = tuple[int, int, str]  # its pid, its start time, its command line


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent dies, even of SIGKILL. For preexec_fn."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Keeps all descendants of this process below it, even if their parents die."""
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(
    command: Sequence[Any],
    env: Mapping[str, str],
    cwd: str,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.STDOUT,
    outlives: bool = False,
) -> "subprocess.Popen[bytes]":
    """Starts a command in a session of its own. By default, its stdout and stderr go to a pipe.

    This process, and those that it starts, may read the command's memory, even with ptrace_scope 1.

    outlives: whether it goes on when this process is killed.

    Raises OSError, ValueError.
    """

    def prepare() -> None:
        os.setsid()
        _LIBC.prctl(PR_SET_PTRACER, os.getppid(), 0, 0, 0)  # exec keeps it; kernels without Yama do not know it
        if not outlives:
            die_with_parent()

    return subprocess.Popen(command, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, preexec_fn=prepare)


def raise_open_files(wanted: int | str) -> str | None:
    """Raises the open-file limit of this process and its children to a number, or to the maximum ("auto").

    Returns a line for the user, or None.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else hard
    number = most if isinstance(wanted, str) else wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(number, most, MOST_OPEN_FILES), hard))
    if number > most:
        return f"open_files = {number}: the maximum on this host is {most}"
    return None


def find(job: str, variable: str = JOB_VARIABLE) -> list[Process]:
    """The processes of a job on this host, except this one: a list of (pid, start time, command line).

    The start time distinguishes a process from a later one with the same pid. variable: the environment variable whose
    value is `job`. Podman's conmon, which adopts the orphans of its container, has only the container's name.
    """
    wanted, prefix = f"{variable}={job}".encode(), container_prefix(job).encode()

    def belongs(pid: int) -> bool:
        if wanted in read(pid, "environ").split(b"\0"):
            return True
        words = read(pid, "cmdline") if variable == JOB_VARIABLE else b""
        return prefix in words and words.partition(b"\0")[0].endswith(b"conmon")

    pids = [pid for pid in all_pids() if belongs(pid)]
    return _describe(set(pids) | _below(pids)) if pids else []


def container_prefix(job: str) -> str:
    """How the names of a job's containers begin."""
    return f"cluster-{job}-"


def find_descendants() -> list[Process]:
    """The processes that descend from this one, in the form of `find`."""
    return _describe(_below([os.getpid()]))


def describe_use(pids: Iterable[int]) -> tuple[float, int, tuple[tuple[int, str], ...]]:
    """The resources that processes have used, and which of them are stopped.

    CPU time in seconds, with children that have ended; bytes read and written; (pid, command line) of stopped ones.
    Processes under a debugger do not count as stopped.
    """
    import psutil  # noqa: PLC0415 - it takes 10 ms

    cpu_s, size_bytes, stopped = 0.0, 0, []
    for pid in pids:
        with contextlib.suppress(psutil.Error):  # it is gone, or of another user
            process = psutil.Process(pid)
            cpu_s += sum(process.cpu_times()[:4])
            if process.status() == psutil.STATUS_STOPPED:
                stopped.append(pid)
            used = process.io_counters()
            size_bytes += used.read_chars + used.write_chars
    return cpu_s, size_bytes, tuple((pid, words) for pid, _, words in _describe(stopped))


def our_programs_last(found: Sequence[Process]) -> Sequence[Process]:
    """For children.end_processes: our own programs and those of container engines, as long as other processes are left.

    If the agent ended first, its children would be killed at once (die_with_parent), without their time after SIGTERM.
    An engine's programs end with their container; otherwise they would pass SIGTERM on to it a second time.
    """
    ours = [entry for entry in found if OUR_PROGRAM in entry[2] or is_engine_program(entry[2])]
    return ours if len(ours) < len(found) else ()


def is_engine_program(words: str) -> bool:
    """Whether a command line is that of a program that runs containers, not of a program in a container."""
    first = words.partition(" ")[0]
    if first == "sudo":
        return any(word in ENGINE_PROGRAMS for word in words.split()[:6])
    return os.path.basename(first) in ENGINE_PROGRAMS


def signal_all(pids: Iterable[int], number: int) -> None:
    """Sends a signal to processes; as root, if necessary. Then continues them: a stopped process would not get it."""
    refused: list[str] = []
    for pid in pids:
        try:
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
        except PermissionError:
            refused.append(str(pid))
    if refused:
        try:
            sudo = subprocess.Popen(
                ["sudo", "-n", "sh", "-c", KILL_AS_ROOT, "kill", str(int(number)), *refused],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            sudo.wait(timeout=ROOT_TIMEOUT_S)  # not `call`, which could not kill a process of root, and would wait
        except (OSError, subprocess.TimeoutExpired):
            pass  # processes that do not end are reported


def has_handler(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal. Without one, the signal would end it."""
    for line in read(pid, "status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def start_time(pid: int) -> int | None:
    """The start time of a process, in clock ticks since boot; None if it is gone or dead."""
    fields = stat(pid)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(process: Process) -> bool:
    """Whether a process still runs."""
    return start_time(process[0]) == process[1]


def boot() -> str:
    """A text that identifies this boot of the host: the kernel's id, and the start time of the first process.

    On a host that shares its kernel with others, only the second one differs.
    """
    kernel, began = read("sys/kernel/random", "boot_id").decode().strip(), start_time(1)
    return f"{kernel}:{'' if began is None else began}"


def is_other_boot(one: str, other: str) -> bool:
    """Whether two texts from `boot` are of different boots. Parts that are empty in one of them do not count."""
    pairs = zip(one.split(":"), other.split(":"), strict=False)
    return any(a and b and a != b for a, b in pairs)


def _describe(pids: Iterable[int]) -> list[Process]:
    found = []
    for pid in sorted(pids):
        began = start_time(pid)
        if began is not None and pid != os.getpid():
            words = read(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()
            if words not in PAUSES:
                found.append((pid, began, words))
    return found


def _below(roots: Iterable[int]) -> set[int]:
    """The pids of all descendants of some processes, without the processes themselves."""
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        fields = stat(pid)
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    parents = list(roots)
    while parents:
        for child in children.get(parents.pop(), ()):
            if child not in found:
                found.add(child)
                parents.append(child)
    return found


def all_pids() -> list[int]:
    """The processes of this host."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat, from the third one, the state, on; None if the process is gone."""
    return read(pid, "stat").rpartition(b")")[2].split() or None


def read(pid: int | str, name: str) -> bytes:
    """The content of a file in /proc/PID, or in another folder; empty if the process is gone or of another user."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as stream:
            return stream.read()
    except OSError:
        return b""
