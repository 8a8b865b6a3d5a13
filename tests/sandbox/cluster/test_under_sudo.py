"""Commands under sudo: their files belong to the user who called sudo, who can continue without it.

The user is a real one, and so is sudo; sudoers is another file in a mount namespace of the test's own.
"""

import os
import pwd
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ordinary_user import install
from terminal import Terminal

pytestmark = pytest.mark.sandbox


@dataclass
class User:
    """A user with a home that has a project and the program."""

    name: str

    def __post_init__(self) -> None:
        account = pwd.getpwnam(self.name)
        self.uid, self.gid, self.home = account.pw_uid, account.pw_gid, Path(account.pw_dir)
        self.project, self.code = self.home / "project", self.home / "code"
        self.project.mkdir()
        (self.project / "cluster.toml").write_text('name = "demo"\n')
        install(self.code)
        subprocess.run(["chown", "-Rh", f"{self.uid}:{self.gid}", str(self.home)], check=True)

    def environment(self) -> dict[str, str]:
        hidden = ("AWS_", "CLUSTER_", "PYTHONPATH", "SUDO_", "XDG_", "VIRTUAL_ENV")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        return {**kept, "HOME": str(self.home), "USER": self.name, "LOGNAME": self.name}

    def command(self, *words: str) -> list[str]:
        return [str(self.code / ".venv/bin/cluster"), *words]

    def root_owned(self) -> list[str]:
        """Returns the files below the user's home that do not belong to the user."""
        paths = (path for path in self.home.rglob("*") if path.lstat().st_uid != self.uid)
        return sorted(str(path.relative_to(self.home)) for path in paths)


@pytest.fixture
def user() -> Iterator[User]:
    name = f"cluster-test-{os.getpid()}"
    home = Path(tempfile.mkdtemp(prefix="cluster-home-"))  # not below pytest's folders, which only root can enter
    home.rmdir()
    subprocess.run(["useradd", "--create-home", "--home-dir", str(home), "--shell", "/bin/sh", name], check=True)
    try:
        made = User(name)
        yield made
        words = made.command("sandbox", "stop", "--yes")
        subprocess.run(words, cwd=made.project, env=made.environment(), capture_output=True, check=True)
    finally:
        subprocess.run(["userdel", name], check=True)
        shutil.rmtree(home)


# A machine on which this user may use sudo, with a password, and cannot run the sandbox without root.
SUDOERS = """
mount -t tmpfs tmpfs /mnt
printf 'Defaults secure_path="/usr/sbin:/usr/bin:/sbin:/bin"\n%s ALL=(ALL:ALL) ALL\n' {name} >/mnt/sudoers
chmod 440 /mnt/sudoers
touch /mnt/none /etc/subuid
mount --bind /mnt/sudoers /etc/sudoers
mount --bind /mnt/none /etc/subuid
exec setpriv --reuid={uid} --regid={gid} --init-groups -- "$@"
"""


def test_a_command_asks_for_sudo_by_itself_and_once(user: User) -> None:
    """At a terminal it asks for the password; without one, the error names the command. Only the sandbox is root's."""
    subprocess.run(["chpasswd"], input=f"{user.name}:correct horse\n", text=True, check=True)
    setup = SUDOERS.format(name=user.name, uid=user.uid, gid=user.gid)
    program = ("unshare", "--mount", "--", "/bin/sh", "-euc", setup, "sh")
    refused = subprocess.run(
        (*program, *user.command("sandbox", "start")), cwd=user.project, env=user.environment(), text=True,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert refused.returncode == 1, refused.stderr
    assert "Without root, the sandbox needs " in refused.stderr  # user ids, or packages that this machine does not have
    assert "try: sudo " in refused.stderr

    terminal = Terminal(columns=200)
    try:
        streams: Any = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
        script = " && ".join(
            [
                *(shlex.join(user.command(*words)) for words in (["sandbox", "start"], ["status"])),
                shlex.join(("sudo", *user.command("data", "demo", "digits"))),
                shlex.join(user.command("sandbox", "stop")),
            ]
        )
        with subprocess.Popen(
            [*program, "setsid", "--ctty", "--wait", "sh", "-c", script],
            cwd=user.project, env=user.environment(), start_new_session=True, **streams,
        ) as shell:  # fmt: skip
            terminal.wait_for(lambda: "password for" in terminal.raw, timeout_s=60)
            before = terminal.screen.text
            terminal.type("correct horse\n")
            shell.wait(timeout=180)
        screen = terminal.settle()
    finally:
        terminal.close()
    assert shell.returncode == 0, screen
    assert "running this command with sudo; only the sandbox runs as root, your files stay yours" in before
    assert "to run the sandbox without root: sudo " in before
    assert screen.count("password for") == 1, screen
    assert "removed the sandbox" in screen
    assert (user.project / "digits" / "train").exists()
    assert user.root_owned() == []
