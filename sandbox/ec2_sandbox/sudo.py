"""A command under sudo runs as the user who called sudo; only the sandbox becomes root.

So the files that the command writes belong to that user, however the command ends.
"""

import os
import pwd
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

AGAIN = "EC2_SANDBOX_RUNS_AGAIN"
"""The variable of a command that runs itself again in other namespaces: it does not repeat its first messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """The user who called sudo."""

    uid: int
    gid: int
    name: str
    home: Path


def find_caller() -> Caller | None:
    """The user who called sudo; None when this process is not root, or is root without sudo."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return None
    try:
        uid, gid = int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"])
        account = pwd.getpwuid(uid)
    except (KeyError, ValueError):
        return None
    if uid <= 0 or gid < 0:
        return None
    # `sudo -E`, and on some systems plain `sudo`, keeps the user's HOME.
    kept = os.environ.get("HOME") or _root_home()
    return Caller(uid=uid, gid=gid, name=account.pw_name, home=Path(account.pw_dir if kept == _root_home() else kept))


def become_caller() -> bool:
    """If sudo started this process, give up root's rights, except in `as_root`; returns whether it did.

    The process stays root, with root's home, if the user cannot enter the current folder or read this program, as in
    a shell that `sudo -i` opened.
    """
    caller = find_caller()
    if caller is None:
        return False
    os.initgroups(caller.name, caller.gid)
    _set_ids(uid=caller.uid, gid=caller.gid)
    if not _can_work_here():
        _become_root()
        os.environ["HOME"] = _root_home()
        return False
    os.environ["HOME"] = str(caller.home)
    os.environ["USER"] = os.environ["LOGNAME"] = caller.name
    return True


@contextmanager
def as_root() -> Iterator[None]:
    """Regains root's rights within the block. Does nothing in a process that has not given them up.

    All threads of the process are root during the block, so no other thread may write files.
    """
    if sys.platform != "linux" or os.geteuid() == 0 or os.getresuid()[2] != 0:
        yield
        return
    uid, gid, groups, dont_write_bytecode = os.getuid(), os.getgid(), os.getgroups(), sys.dont_write_bytecode
    _become_root()
    sys.dont_write_bytecode = True  # root would own the files, in the user's folders
    try:
        yield
    finally:
        sys.dont_write_bytecode = dont_write_bytecode
        os.setgroups(groups)
        _set_ids(uid=uid, gid=gid)


def _root_home() -> str:
    return pwd.getpwuid(0).pw_dir


def _can_work_here() -> bool:
    try:
        folders = (Path(__file__).parent, Path(os.__file__).parent, Path(sys.prefix), Path.cwd())
    except FileNotFoundError:  # the current folder has been removed
        return False
    return all(os.access(folder, os.R_OK | os.X_OK) for folder in folders)


def _set_ids(*, uid: int, gid: int) -> None:
    """Sets all ids but the saved ones, which stay root's; child processes do not keep those."""
    os.setresgid(gid, gid, 0)
    os.setresuid(uid, uid, 0)


def _become_root() -> None:
    os.setresuid(0, 0, 0)
    os.setresgid(0, 0, 0)
    os.setgroups([0])
