"""The sandbox of an ordinary user, as that user, without sudo."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from project import REPOSITORY
from sandbox.place import find_processes
from waits import until

UID = 4321  # of no user of this machine
pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in ("newuidmap", "slirp4netns")),
        reason="sudo apt-get install uidmap slirp4netns",
    ),
]
NAME = "ordinary"
UV = Path(sys.executable).with_name("uv")
# The usual setup of a desktop or server, in a mount namespace of the test's own.
SETUP = f"""
mount -t tmpfs tmpfs /mnt
for device in tun:200 fuse:229; do
    mknod /mnt/${{device%:*}} c 10 ${{device#*:}}
    chmod 666 /mnt/${{device%:*}}
done
mount --bind /mnt/tun /dev/net/tun
[ ! -e /dev/fuse ] || mount --bind /mnt/fuse /dev/fuse
grep -v ':{UID}:' /etc/passwd >/mnt/passwd
echo "{NAME}:x:{UID}:{UID}::$HOME:/bin/bash" >>/mnt/passwd
echo "{NAME}:500000:65536" >/mnt/subids
mount --bind /mnt/passwd /etc/passwd
for file in subuid subgid; do
    touch /etc/$file
    mount --bind /mnt/subids /etc/$file
done
{{extra}}
exec setpriv --reuid={UID} --regid={UID} --clear-groups -- "$@"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """An ordinary user with a copy of the project, and its command in an environment of the system's own Python."""

    home: Path

    @property
    def source(self) -> Path:
        return self.home / "project"

    def run(self, *words: str, extra: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a command in the project. extra: commands to run first, as root."""
        setup = SETUP.replace("{extra}", extra)
        environment = {"HOME": str(self.home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        done = subprocess.run(
            ("unshare", "--mount", "--", "/bin/sh", "-euc", setup, "sh", *words),
            cwd=self.source, env=environment, capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def cluster(self, *words: str, extra: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run(".venv/bin/cluster", *words, extra=extra, check=check)

    def processes(self) -> list[int]:
        """The processes that hold the user's namespaces, as long as one of their sandboxes runs."""
        return [*find_processes(f"cluster-sandbox-user:{UID}")]


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    home = Path(tempfile.mkdtemp(prefix="cluster-user-", dir="/tmp"))  # whose parent folders are open to all
    user = User(home=home)
    listed = subprocess.run(("git", "ls-files", "-z"), cwd=REPOSITORY, capture_output=True, check=True).stdout
    for name in listed.split(b"\0")[:-1]:
        target = user.source / os.fsdecode(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / os.fsdecode(name), target)
    python = user.source / ".venv/bin/python"
    subprocess.run((UV, "venv", "--quiet", "--python", "/usr/bin/python3", user.source / ".venv"), check=True)
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile")
    subprocess.run((*install, "--require-hashes", "-r", user.source / "requirements/run.txt"), check=True)
    subprocess.run((*install, "--no-deps", "--no-build-isolation", "--editable", user.source), check=True)
    for path in (home, *home.rglob("*")):
        os.chown(path, UID, UID, follow_symlinks=False)
    try:
        yield user
    finally:
        user.cluster("sandbox", "reset", check=False)
        until(lambda: not user.processes(), "the user's namespaces stay")
        shutil.rmtree(home)


@pytest.fixture(autouse=True)
def _alone(user: User) -> None:
    """Waits until the namespaces are gone: they stay for a second after their last sandbox."""
    until(lambda: not user.processes(), "the user's namespaces stay")


def test_the_demo(user: User) -> None:
    done = user.run("sandbox/demo")
    assert "nothing is left running" in done.stdout
    assert "job " in done.stdout
    until(lambda: not user.processes(), "the user's namespaces stay")
    owners = {path.lstat().st_uid for path in user.home.rglob("*")}
    assert owners == {UID}
    assert not (user.home / ".local/state/cluster/sandbox").exists()


def test_nothing_is_left_after_everything_was_killed(user: User) -> None:
    user.cluster("up")
    assert '"running"' in user.cluster("status", "--json").stdout
    before = user.processes()
    assert before
    for pid in before:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it ended with another one
            continue
    until(lambda: not user.processes(), "a process outlived the kill")
    until(lambda: not _owned_processes(), "a process of a host outlived the kill")
    assert "crashed" in user.cluster("sandbox", "status").stdout
    until(lambda: not user.processes(), "the namespaces stay for what has crashed")
    user.cluster("sandbox", "reset")
    until(lambda: not user.processes(), "the user's namespaces stay")
    assert not (user.home / ".local/state/cluster/sandbox").exists()


def test_the_users_own_tools(user: User) -> None:
    assert "is not running" in user.cluster("sandbox", "shell", "--", "true", check=False).stderr
    user.cluster("sandbox", "start")
    program = "import boto3; print(boto3.client('ec2').describe_vpcs()['Vpcs'][0]['IsDefault'])"
    assert user.cluster("sandbox", "shell", "--", ".venv/bin/python", "-c", program).stdout == "True\n"
    assert user.cluster("sandbox", "shell", "--", "false", check=False).returncode == 1
    user.cluster("sandbox", "stop")


@pytest.mark.parametrize(
    ("extra", "hint"),
    [
        ("umount /dev/net/tun; chmod 600 /mnt/tun; mount --bind /mnt/tun /dev/net/tun", "sudo chmod 666 /dev/net/tun"),
        ("echo >/mnt/subids", f"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {NAME}"),
        ("for i in newuidmap; do mount --bind /dev/null /usr/bin/$i; done", "sudo apt-get install uidmap slirp4netns"),
    ],
)
def test_missing_requirements_are_named_with_a_command(extra: str, hint: str, user: User) -> None:
    failed = user.cluster("sandbox", "start", extra=extra, check=False)
    assert (failed.returncode, f"try: {hint}" in failed.stderr) == (1, True), failed.stderr
    assert not user.processes()


def _owned_processes() -> list[int]:
    """The pids of the processes of users in hosts, who have the user's subordinate ids."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry.stat().st_uid in range(500000, 565536)):
                found.append(int(entry.name))
        except FileNotFoundError:
            continue
    return found
