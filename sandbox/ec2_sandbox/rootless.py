"""The sandbox of an ordinary user: outer namespaces in which the user is root. Otherwise, it is the same as root's.

A command that needs the sandbox runs itself again in these namespaces. Its files belong to the user. slirp4netns
connects the namespaces to the Internet; the machine's own addresses cannot be reached.
"""

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from ec2_sandbox.errors import SandboxError
from ec2_sandbox.hosts.hosts import add_sbin, sudo_command
from ec2_sandbox.paths import PYTHON, USERS_MARK, find_processes, paths_of, read_arguments
from ec2_sandbox.progress import Event, Report
from ec2_sandbox.sudo import AGAIN

HOLDER = Path(__file__).with_name("holder.py")
KEYS = (signal.SIGINT, signal.SIGQUIT)  # of the terminal's keys
TUN = Path("/dev/net/tun")
# The least number of subordinate ids that a user needs, and the number that useradd gives to every user.
LEAST_IDS = 65536
NAMESPACES = ("--user", "--mount", "--pid", "--net")
# Ubuntu's setting by which ordinary users may not create user namespaces.
FORBIDS = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


def find_state_folder() -> Path:
    """Returns an ordinary user's folder for sandboxes (XDG Base Directory Specification)."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".local/state") / "ec2-sandbox"


def enter(project_dir: Path, *, start: bool, report: Report, for_all: bool = False) -> None:
    """Runs this command again in the user's namespaces. Returns if that is not needed, or if there are none.

    Root does not need them, nor does the user who started the folder's sandbox under sudo. start: create missing
    namespaces, or run the command under sudo if the machine does not allow that. for_all: the command is for all
    folders' sandboxes. Raises SandboxError, with the command that helps, if sudo cannot be used either.
    """
    if not is_ordinary_user() or paths_of(project_dir).state_dir.exists():
        return
    add_sbin()
    state_root = find_state_folder() / "sandboxes"
    holder = _find_holder()
    if holder is None:
        left = state_root if for_all else state_root / paths_of(project_dir).id
        if not start and not left.exists():  # no sandbox has crashed
            return
        try:
            check_user()
        except SandboxError as error:
            _run_under_sudo(error, report)
            raise
        holder = _start_holder(state_root)
    # In a shell that sudo opened, the SUDO_ variables would name another user.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUDO_")}
    environment[AGAIN] = "1"
    # There, the user's id is root's; pytest's temporary folder, for one, must not be that of the machine's root.
    environment.setdefault("LOGNAME", pwd.getpwuid(os.getuid()).pw_name)
    sys.stdout.flush()
    # nsenter waits in the foreground of the terminal, because the shell then takes the terminal back. So Ctrl-C is the
    # command's alone. A signal that ends nsenter ends the command, too.
    heeded = [number for number in KEYS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, signal.SIG_IGN)
    words = (
        "nsenter", f"--target={holder}", "--user", "--mount", "--pid", "--net", "--preserve-credentials",
        "--", "setpriv", "--pdeathsig", "TERM", "--",
        # Of a folder inside, nsenter knows since util-linux 2.38, and Ubuntu 22.04 has 2.37.
        "env", f"--chdir={Path.cwd()}", *(f"--default-signal={number.name}" for number in heeded), "--",
        *sys.orig_argv,
    )  # fmt: skip
    os.execvpe(words[0], words, environment)  # noqa: S606 - no shell is wanted


def become_root(project_dir: Path, *, report: Report) -> None:
    """Runs this command again under sudo if it needs root's rights for a sandbox that belongs to root.

    Returns if that is not needed, or if sudo cannot be used.
    """
    if is_ordinary_user() and paths_of(project_dir).state_dir.exists():
        _run_under_sudo(SandboxError("The sandbox of this folder runs as root."), report)


def _run_under_sudo(reason: SandboxError, report: Report) -> None:
    """Reports the reason, and runs this command again under sudo, with only the sandbox as root (sudo.py).

    Returns if sudo is not installed, or if it would ask for a password without a terminal.
    """
    if shutil.which("sudo") is None:
        return
    interactive = sys.stdin.isatty() and sys.stderr.isatty()
    if not interactive and subprocess.run(("sudo", "-n", "true"), capture_output=True, check=False).returncode != 0:
        return
    report(Event(kind="warn", what=reason.message))
    if reason.hint not in (None, sudo_command()):
        report(Event(kind="info", what=f"to run the sandbox without root: {reason.hint}"))
    what = "running this command with sudo; only the sandbox runs as root, your files stay yours"
    report(Event(kind="info", what=what))
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's path, because sudo has its own PATH.
    os.execvp("sudo", ("sudo", "-E", "--", sys.executable, *sys.orig_argv[1:]))  # noqa: S606 - no shell is wanted


def is_ordinary_user() -> bool:
    """Returns whether this process has no root's rights: neither the machine's nor those of the user's namespaces."""
    return sys.platform == "linux" and 0 not in (os.geteuid(), os.getresuid()[2])


def check_user() -> None:
    """Raises SandboxError if this user cannot create the namespaces. Its hint is the command that allows it."""
    user = pwd.getpwuid(os.getuid()).pw_name
    missing = [name for name in ("newuidmap", "slirp4netns") if shutil.which(name) is None]
    needs = {}
    if missing:
        needs[f"{' and '.join(missing)}, which this machine does not have"] = "sudo apt-get install uidmap slirp4netns"
    if not all(has_ids(Path(f"/etc/{name}").read_text(), user, os.getuid()) for name in ("subuid", "subgid")):
        what = f"{LEAST_IDS} user ids and group ids that belong to {user} (subuid(5))"
        needs[what] = f"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
    if not os.access(TUN, os.R_OK | os.W_OK):
        needs[f"{TUN}, which {user} may not use"] = f"sudo chmod 666 {TUN}"
    if needs:
        raise SandboxError(f"Without root, the sandbox needs {'; '.join(needs)}.", hint=" && ".join(needs.values()))
    tried = subprocess.run(
        ("unshare", "--user", "--map-root-user", "--net", "true"), capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        is_forbidden = FORBIDS.exists() and FORBIDS.read_text().strip() == "1"
        raise SandboxError(
            f"This machine does not let {user} create user namespaces: {tried.stderr.strip()}",
            hint=f"sudo sysctl kernel.{FORBIDS.name}=0" if is_forbidden else sudo_command(),
        )


def has_ids(text: str, user: str, uid: int) -> bool:
    """Returns whether a line of /etc/subuid gives the user enough ids. Pure."""
    lines = [line.split(":") for line in text.splitlines()]
    return any(line[0] in (user, str(uid)) and int(line[2]) >= LEAST_IDS for line in lines if len(line) == 3)


def _find_holder() -> int | None:
    """Returns the machine's pid of process 1 of the user's namespaces, or None if there are none."""
    return next((pid for pid in find_processes(_mark()) if read_arguments(pid)[:1] == [PYTHON]), None)


def _mark() -> str:
    return f"{USERS_MARK}:{os.getuid()}"


def _start_holder(state_root: Path) -> int:
    state_root.parent.mkdir(parents=True, exist_ok=True)
    with (state_root.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        holder = _find_holder()
        if holder is not None:  # another command has created them in the meantime
            return holder
        exit_read, exit_write = os.pipe()
        process = subprocess.Popen(
            ("unshare", *NAMESPACES, "--map-root-user", "--map-auto", "--propagation", "slave", "--fork",
             "--kill-child", "--mount-proc", "--", PYTHON, "-I", "-S", "-B", str(HOLDER), _mark(), str(state_root)),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(exit_write,),
            start_new_session=True, cwd="/",
        )  # fmt: skip
        os.close(exit_write)
        assert process.stdout is not None  # noqa: S101 -- PIPE sets it, which mypy does not know
        is_ready = bool(process.stdout.read(1))
        _leave(process, is_ready=is_ready, what="create the namespaces for the sandbox")
        holder = _find_holder()
        assert holder is not None  # noqa: S101 -- it has just answered
        _connect(holder, exit_read)
        return holder


def _connect(holder: int, exit_fd: int) -> None:
    """Starts slirp4netns, which ends when the holder does. Raises SandboxError."""
    ready_read, ready_write = os.pipe()
    process = subprocess.Popen(
        ("slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback", f"--exit-fd={exit_fd}",
         f"--ready-fd={ready_write}", str(holder), "tap0"),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=(exit_fd, ready_write),
        start_new_session=True, cwd="/",
    )  # fmt: skip
    os.close(ready_write)
    os.close(exit_fd)
    _leave(process, is_ready=bool(os.read(ready_read, 1)), what="connect the sandbox to the network")
    os.close(ready_read)


def _leave(process: "subprocess.Popen[bytes]", *, is_ready: bool, what: str) -> None:
    """Lets a process outlive this one. Raises SandboxError with its errors if it is not ready."""
    assert process.stderr is not None  # noqa: S101 -- PIPE sets it, which mypy does not know
    if not is_ready:
        raise SandboxError(f"Could not {what}: {process.stderr.read().decode().strip()}")
    process.stderr.close()
    process.returncode = 0  # Popen must not warn that it still runs
