"""Runs a command in the namespaces of an ordinary user's sandboxes (rootless.py), and ends as the command does.

    /usr/bin/python3 -I -S -B enter.py HOLDER FOLDER COMMAND...

HOLDER: the pid of their process 1. SIGNALS are blocked when it starts. It waits in the foreground of the terminal until
the command has ended, because the shell then takes the terminal back. Imports only the standard library.
"""

import ctypes
import os
import signal
import sys
from typing import NoReturn

SIGNALS = {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP}
# linux/sched.h: of users, mounts, processes and the network.
NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000
SI_KERNEL = 0x80  # asm-generic/siginfo.h


def main() -> NoReturn:
    """Starts the command, and ends with its exit code or by its signal."""
    holder, folder, *words = sys.argv[1:]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        enter(int(holder))
    except OSError as error:
        sys.exit(f"error: the sandbox's namespaces cannot be entered: {error}\n  try: run the same command again")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    early = signal.sigpending()
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, *SIGNALS})
        os.chdir(folder)
        os.execvp(words[0], words)  # noqa: S606 - no shell is wanted
    code = os.waitstatus_to_exitcode(wait(child, early))
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def enter(holder: int) -> None:
    """Enters the namespaces; that of processes is for children. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(os.pidfd_open(holder), NAMESPACES) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def wait(child: int, early: set[signal.Signals]) -> int:
    """Passes signals on until the child has ended, and returns its wait status. Stops while the child is stopped.

    The child gets a signal of the terminal itself. early: signals from before it was started.
    """
    while True:
        received = signal.sigwaitinfo({signal.SIGCHLD, *SIGNALS})
        if received.si_signo != signal.SIGCHLD:
            if received.si_code != SI_KERNEL or received.si_signo in early:
                os.kill(child, received.si_signo)
            early = early - {received.si_signo}
            continue
        pid, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
        elif pid:
            return status


if __name__ == "__main__":
    main()
