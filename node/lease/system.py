"""The system functions of the lease program: the clock, threads, the console, files and the power.

Python 3.6 and later, standard library only.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, List, Optional

RUN = "/run/cluster"  # in memory, until the next boot
SAVED = "/var/lib/cluster-lease"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FORCE_AFTER_S = 20.0
"""How long `shutdown` may take; after that, the power goes off without it."""
DISK_S = 5.0
"""How long to wait for a disk, which may hang."""
POWER_OFF = 0x4321FEDC  # reboot(2)
CLOCK_BOOTTIME = 7  # clock_gettime(2); Python has it since 3.7


def boot_clock() -> float:
    """Returns the seconds since the boot. The clock does not jump, and it counts time in suspend."""
    return time.clock_gettime(CLOCK_BOOTTIME)


def say(text: str) -> None:
    """Writes a line to the console. Ignores errors: the console may be closed."""
    try:
        sys.stderr.write("cluster-lease: {}\n".format(text))
        sys.stderr.flush()
    except (OSError, ValueError):
        return


def start_thread(work: "Callable[..., Any]", *words: Any) -> Optional[threading.Thread]:
    """Runs work in the background. None if the node has no thread left, which must not keep the node alive."""
    thread = threading.Thread(target=work, args=words, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        say("no thread: {}".format(error))
        return None
    return thread


def work_within(seconds: float, work: "Callable[[], Any]") -> Any:
    """Returns the work's result; None if it takes longer, since a disk may hang. The work must not raise."""
    results: List[Any] = []
    thread = start_thread(lambda: results.append(work()))
    if thread is not None:
        thread.join(seconds)
    return results[0] if results else None


def write_whole(path: str, text: str, mode: int = 0o644) -> None:
    """Writes a file atomically. Raises OSError."""
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


def end_node(why: str) -> None:
    """Switches this node off. Does not return."""
    say("the lease has ended ({}): switching this node off".format(why))
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)  # this program must continue until the power is off
    failed = threading.Event()
    if start_thread(_shut_down, failed) is not None:  # on a hung disk, it waits forever
        failed.wait(FORCE_AFTER_S)
    while True:
        work_within(DISK_S, os.sync)  # a hung file system must not keep the node alive
        ctypes.CDLL(None).reboot(POWER_OFF)
        try:
            with open("/proc/sysrq-trigger", "w") as stream:
                stream.write("o")
        except OSError as error:
            say("the power does not go off: {}".format(error))
        time.sleep(5.0)


def _shut_down(failed: threading.Event) -> None:
    try:
        subprocess.Popen(
            ["shutdown", "-P", "now"],
            env={"PATH": PATH},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        say("shutdown does not start: {}".format(error))
        failed.set()
