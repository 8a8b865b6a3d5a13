"""Waiting for the end of a command's channel: its other side may close its output and go on for ever."""

from typing import Any

from bootstrap.explain import NO_EXIT_CODE


def wait_for_exit(channel: Any, *, timeout_s: float) -> int:
    """The command's exit code; NO_EXIT_CODE where a signal ended it, the connection broke or it took too long.

    channel: paramiko's, whose own recv_exit_status waits without an end.
    """
    if not channel.status_event.wait(timeout_s):
        return NO_EXIT_CODE
    return int(channel.recv_exit_status())
