"""An ordinary user of this machine with a sandbox without root, in a mount namespace of the test's own."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ec2_sandbox.paths import find_processes
from project import REPOSITORY
from waits import until

# Those of no user of this machine, and of no other process that runs tests.
UID = 20000 + os.getpid() % 5000
SUBORDINATE_IDS = range(first := 1_000_000 + os.getpid() % 5000 * 65536, first + 65536)
NEEDS_NAMESPACES = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("newuidmap", "slirp4netns")),
    reason="sudo apt-get install uidmap slirp4netns",
)
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
# Not the files alone: a useradd elsewhere replaces them, which would unmount them here.
mkdir /mnt/etc /mnt/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/etc,workdir=/mnt/work /etc
grep -v ':{UID}:' /etc/passwd >/mnt/passwd
echo "{NAME}:x:{UID}:{UID}::$HOME:/bin/bash" >>/mnt/passwd
cat /mnt/passwd >/etc/passwd
for file in subuid subgid; do
    echo "{NAME}:{SUBORDINATE_IDS.start}:65536" >/etc/$file
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

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}

    def words(self, *words: str, extra: str = "") -> list[str]:
        """Returns the command with which root runs one as the user. extra: commands to run first, as root."""
        return ["unshare", "--mount", "--", "/bin/sh", "-euc", SETUP.replace("{extra}", extra), "sh", *words]

    def run(self, *words: str, extra: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a command in the project."""
        done = subprocess.run(
            self.words(*words, extra=extra), cwd=self.source, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def cluster(self, *words: str, extra: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run(".venv/bin/cluster", *words, extra=extra, check=check)

    def processes(self) -> list[int]:
        """The processes that hold the user's namespaces, as long as one of their sandboxes runs."""
        return [*find_processes(f"ec2-sandbox-user:{UID}")]


@contextmanager
def ordinary_user() -> Iterator[User]:
    """A user with the project and its command; the sandbox is removed at the end of the block."""
    home = Path(tempfile.mkdtemp(prefix="cluster-user-", dir="/tmp"))  # whose parent folders are open to all
    user = User(home=home)
    install(user.source)
    subprocess.run(["chown", "-Rh", f"{UID}:{UID}", home], check=True)
    try:
        yield user
    finally:
        user.cluster("sandbox", "stop", "--yes", check=False)
        until(lambda: not user.processes(), "the user's namespaces stay")
        shutil.rmtree(home)


def install(source: Path) -> None:
    """Copies the project to a folder, with an environment for its command, whose packages are those of this process."""
    listed = subprocess.run(("git", "ls-files", "-z"), cwd=REPOSITORY, capture_output=True, check=True).stdout
    for name in map(os.fsdecode, listed.split(b"\0")[:-1]):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, source / name)
    environment = source / ".venv"
    subprocess.run((UV, "venv", "--quiet", "--python", "/usr/bin/python3", environment), check=True)
    (folder,) = environment.glob("lib/python3.*/site-packages")
    packages = find_packages(source.parent, folder.parent.name)
    (folder / "program.pth").write_text(f"{source}\n{source}/sandbox\n{packages}\n")
    command = environment / "bin" / "cluster"
    command.write_text(f"#!{environment / 'bin' / 'python'}\nfrom mxnet_cluster import main\n\nmain()\n")
    command.chmod(0o755)


def find_packages(home: Path, python: str) -> Path:
    """Returns a folder with this program's requirements that every user can read. home: where to install them if not.

    python: the name of the interpreter. Its files are no links into uv's cache, whose owner would change with theirs.
    """
    ours = Path(pytest.__file__).parents[1]
    if ours.parent.name == python and all(folder.stat().st_mode & 0o005 == 0o005 for folder in (ours, *ours.parents)):
        return ours
    pinned = ("--require-hashes", "-r", str(REPOSITORY / "requirements" / "run.txt"))
    where = ("--python", f"/usr/bin/{python}", "--target", str(home / "packages"), "--link-mode", "copy")
    subprocess.run((UV, "pip", "install", "--quiet", *where, *pinned), check=True)
    return home / "packages"
