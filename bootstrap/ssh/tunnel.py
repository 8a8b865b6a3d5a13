"""Forwards ports of a node to this machine by OpenSSH's ssh, which is started again whenever it ends."""

import errno
import re
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from typing import NoReturn

from bootstrap.ssh.host import Host, find_ssh_words, render_options
from foundation.errors import ClusterError, NotFoundError
from foundation.progress import Event, Report
from foundation.remote_command import RemoteCommand

OPENED = "the ports are forwarded"
ENDED = "the program has ended"
LOCAL = "127.0.0.1"
_DELAYS_S = (0.1, 0.5, 1.0, 2.0)
_NO_ANSWER = re.compile("channel [0-9]+: open failed: connect failed: ")
_LONGEST_DELAY_S = 5.0  # a laptop that wakes up is connected again soon
# Becomes its arguments, which end with this program, also if that is killed: then its end of the pipe closes.
_WITH_US = 'exec 3<&0; { cat <&3; kill $$; } >/dev/null 2>&1 & exec "$@" 3<&- </dev/null'


class ProgramEnded(Exception):
    """The program on the node whose port was forwarded has ended."""


def render_forward_command(
    host: Host, ports: Mapping[int, int], *, options: Mapping[str, str], pid: int | None = None
) -> tuple[str, ...]:
    """The words of an ssh command that forwards ports of a node's loopback to this machine's. Pure.

    ports: by the port on this machine, the one on the node. options: as for render_ssh_command. pid: a program on the
    node with whose end ssh ends, after it has printed ENDED. It prints OPENED once all ports are forwarded, exits if
    one cannot be, and later if the node does not answer.
    """
    tunnel = {
        "ExitOnForwardFailure": "yes",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "2",
        "ControlPath": "none",  # a connection that other commands share would outlive this one
        "PermitLocalCommand": "yes",
        "LocalCommand": f"echo {shlex.quote(OPENED)}",
    }
    forwards = [word for here, there in ports.items() for word in ("-L", f"127.0.0.1:{here}:127.0.0.1:{there}")]
    (program, *words), target = find_ssh_words(host, options=options)
    # Once ssh has gone, echo fails.
    waits = RemoteCommand(f"while kill -0 {pid} 2>/dev/null; do echo; sleep 1; done; echo {shlex.quote(ENDED)}")
    before, after = (("-N",), ()) if pid is None else ((), (waits.line(),))
    # ssh takes the first value of an option.
    return (program, *render_options(tunnel), *words, *before, "-T", *forwards, "--", target, *after)


def check_free(ports: Mapping[int, int]) -> None:
    """Raises ClusterError if a port cannot be opened on this machine. ports: as returned by read_ports."""
    for here, there in ports.items():
        try:
            socket.create_server((LOCAL, here)).close()
        except OSError as error:
            other = f"cluster forward {here + 10000 if here < 50000 else here - 10000}:{there}"
            busy = error.errno == errno.EADDRINUSE
            why = "another program on this machine uses it" if busy else error.strerror
            raise ClusterError(f"port {here} cannot be opened: {why}", hint=f"use another one: {other}") from None


def find_free(port: int) -> int:
    """Returns this port if it is free on this machine, or another one that is. Raises OSError."""
    try:
        socket.create_server((LOCAL, port)).close()
    except OSError:
        with socket.create_server((LOCAL, 0)) as listening:
            port = listening.getsockname()[1]
    return port


def keep_open(
    line: Sequence[str], *, find_line: Callable[[], Sequence[str]], opened: Callable[[], None], report: Report
) -> NoReturn:
    """Runs an ssh command that forwards ports and prints OPENED, again whenever it ends. KeyboardInterrupt ends it.

    find_line: returns the command anew, since a node that was stopped and started has another address; may raise
    ClusterError. opened: called once, when the ports are forwarded. Raises ClusterError if they cannot be or, later,
    NotFoundError if the node is gone, and ProgramEnded.
    """
    failed = _hold(line, opened, report)
    if failed is not None:
        raise ClusterError(f"ssh cannot forward the port: {failed}", hint="cluster status")
    while True:
        report(Event(kind="warn", what="the connection is lost: connecting again, until Ctrl-C"))
        line = _connect_again(line, find_line, report)


def _connect_again(line: Sequence[str], find_line: Callable[[], Sequence[str]], report: Report) -> Sequence[str]:
    """Runs the command until it has forwarded the ports once, and ended. Returns it. Shows an error when it changes."""
    shown = None
    for delay_s in chain(_DELAYS_S, repeat(_LONGEST_DELAY_S)):
        time.sleep(delay_s)
        failed = _hold(line, lambda: report(Event(kind="done", what="connected again")), report)
        if failed is None:
            break
        failed = f"ssh: {failed}"
        try:
            line = find_line()
        except NotFoundError:
            raise
        except ClusterError as error:
            failed = error.message
        if failed != shown:
            report(Event(kind="info", what=failed))
        shown = failed
    return line


def _hold(words: Sequence[str], opened: Callable[[], None], report: Report) -> str | None:
    """Runs the command to its end. Returns None if it has forwarded the ports, otherwise its last message."""
    is_open, last = False, "it has ended without a message"
    with _start(words) as ssh:
        try:
            for line in ssh.stdout or ():
                text = _NO_ANSWER.sub("the port on the node: ", line.strip())
                if text == OPENED:
                    is_open = True
                    opened()
                elif text == ENDED:
                    raise ProgramEnded
                elif is_open and text not in ("", last):
                    report(Event(kind="info", what=f"ssh: {text}"))
                last = text or last
        finally:
            ssh.terminate()
    return None if is_open else last


def _start(line: Sequence[str]) -> "subprocess.Popen[str]":
    """Starts ssh. Raises ClusterError if it is not installed."""
    if shutil.which(line[0]) is None:
        raise explain_missing(line[0])
    words, pipe = ("sh", "-c", _WITH_US, "sh", *line), subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, errors="replace")


def explain_missing(program: str) -> ClusterError:
    """The error when this machine lacks one of OpenSSH's programs. Pure."""
    return ClusterError(
        f"there is no `{program}` on this machine, which this command needs",
        hint="install OpenSSH's client: apt install openssh-client, dnf install openssh-clients",
    )
