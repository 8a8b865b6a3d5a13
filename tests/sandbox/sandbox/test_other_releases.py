"""The commands and the sandbox on other releases of Debian: with another Python, OpenSSH, sudo, s3fs and util-linux.

Nodes of the sandbox run the machine's system, so a test on this machine never meets those of other images.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from project import REPOSITORY

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

PACKAGES = "ca-certificates,git,make,python3,python3-venv,sudo"
CONFIG = """
name = "other"
cloud = "sandbox"
[provision]
nodes = 2
[bootstrap]
framework = "none"
[train]
script = "train.py"
[[volumes]]
mount = "/s3"
source = "s3://other-release/folder/"
[sandbox]
packages = ["s3fs"]
"""
SCRIPT = """
import os, pathlib, platform
rank = os.environ["RANK"]
print(f"rank {rank} on Python {platform.python_version()} reads", pathlib.Path("/s3/deep/file").read_text())
pathlib.Path("/s3", f"written-{rank}").write_text(rank)
"""
# Ends as soon as its caller does, with all that it has started.
AS_MACHINE = """
mount --make-rprivate /
mount --bind "$0" "$0"
cd "$0"
mkdir -p old
for folder in dev sys; do mount --rbind /$folder $folder; done
mount -t proc proc proc
mount -t tmpfs tmpfs run
pivot_root . old
umount -l old
cd /root
exec bash -euxc "$1"
"""
TRIAL = """
make --silent --directory source install
PATH=/root/source/.venv/bin:$PATH
mkdir project
cd project
cp ../cluster.toml ../train.py .
cluster sandbox start
echo "deep inside" >file
cluster data put --create-bucket file s3://other-release/folder/deep/
cluster up
cluster verify
cluster train
cluster data ls s3://other-release/folder/
cluster down --yes
cluster sandbox stop --yes
"""


def run(*words: str | Path, **options: object) -> str:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{words[0]}: {done.returncode}\n{done.stdout[-5000:]}\n{done.stderr[-10000:]}"
    return str(done.stdout)


@pytest.mark.parametrize("release", ["trixie", "forky"])
def test_a_cluster_on_another_release(release: str, tmp_path: Path) -> None:
    if shutil.which("debootstrap") is None:
        pytest.skip("sudo apt-get install debootstrap")
    indexes = run("apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages")
    mirror = next((line.split()[1] for line in indexes.splitlines() if line.startswith("Debian ")), None)
    if mirror is None:
        pytest.skip("this is not Debian")
    root = tmp_path / release
    script = "/usr/share/debootstrap/scripts/sid"
    run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", release, root, mirror, script)
    # This machine's way to its mirrors and indexes.
    files = map(Path, ("/etc/pip.conf", "/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"))
    for path in (*Path("/etc/apt/apt.conf.d").iterdir(), *files):
        if path.is_file():
            target = root / path.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    listed = subprocess.run(("git", "ls-files", "-z"), cwd=REPOSITORY, capture_output=True, check=True).stdout
    subprocess.run(
        ("rsync", "-a", "--from0", "--files-from=-", f"{REPOSITORY}/", root / "root/source"), input=listed, check=True
    )
    (root / "root/cluster.toml").write_text(CONFIG)
    (root / "root/train.py").write_text(SCRIPT)
    env = {**os.environ, "HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHON": "python3"}
    env.pop("PIP_FIND_LINKS", None)  # a folder of this machine
    words = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", AS_MACHINE, root, TRIAL)
    output = run(*words, env=env, timeout=1200)
    for rank in (0, 1):
        assert f"rank {rank} on Python 3." in output
        assert f"written-{rank}" in output
    assert output.count("reads deep inside") == 2
    assert "left     nothing" in output
    shutil.rmtree(root)
