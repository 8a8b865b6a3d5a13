"""Baked images on real hosts: what nodes that start from one install, and what is not in it."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from ec2_sandbox.paths import paths_of
from project import Project
from provision.model import bake_name
from waits import until

pytestmark = pytest.mark.sandbox

# The commands' own text, which the disk may keep, has no whole mark.
PLANT = """p=PLANTED
mkdir -p ~/.ssh ~/.aws ~/.cluster/jobs/one
echo "ssh-ed25519 AAAA $p-key" >>~/.ssh/authorized_keys
echo "aws_secret_access_key = $p-secret" >~/.aws/credentials
echo "mysql -p$p-history" | sudo tee /root/.bash_history >~/.bash_history
echo "{\\"state\\": \\"$p-job\\"}" >~/.cluster/jobs/one/record.json
echo "$p-log" | sudo tee /var/log/installed.log /var/lib/cluster-lease/old
"""
KEEP = 'echo run >>~/runs; export FROM_SETUP="kept value"'
CONFIG = """
name = "baked"
[provision]
{ami}
volume_size_gib = {size}
[lease]
idle = "4h"
[bootstrap]
framework = "none"
setup = {setup}
[train]
launcher = "env"
"""


def write(project: Project, *, ami: str = "", size: int = 8) -> None:
    project.write(CONFIG.format(ami=ami and f'ami = "{ami}"', size=size, setup=json.dumps([PLANT, KEEP])))


def read_disk(path: Path) -> bytes:
    """Everything that is stored in a sparse file."""
    found, at = bytearray(), 0
    with path.open("rb") as file:
        while True:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:  # the rest is a hole
                return bytes(found)
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            found += os.pread(file.fileno(), end - at, at)
            at = end


def read_files(disk: Path, folder: Path) -> dict[str, bytes]:
    """The files of a disk, by path."""
    folder.mkdir()
    subprocess.run(("debugfs", "-R", f"rdump / {folder}", str(disk)), check=True, capture_output=True)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if is_file(path)}


def is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def test_nodes_from_a_baked_image_install_nothing_and_have_no_secrets(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write(project)
    made = project.run("image", "bake")
    assert (made.stdout, "cluster train" in made.stderr) == ("", False)  # neither its node nor its receipt
    assert json.loads(project.run("status", "--json").stdout)["nodes"] == []
    [disk] = paths_of(project.directory).snapshots_dir.iterdir()
    stored = read_disk(disk)
    for secret in (b"PLANTED-secret", b"PLANTED-history", b"PLANTED-job", b"PLANTED-log", b"BEGIN OPENSSH PRIVATE KEY"):
        assert secret not in stored
    files = read_files(disk, tmp_path_factory.mktemp("disk") / "files")
    assert b"kept value" in b"".join(files.values())
    for mark in ("PLANTED-", "_key.pub", ".ec2.internal", ".bash_history", "cluster-lease", bake_name("baked")):
        assert [path for path, text in files.items() if mark in path or mark.encode() in text] == []
    write(project, ami="baked", size=9)
    assert "our own programs" not in project.run("up").stderr
    look = """
        wc -l <~/runs
        for made in ~/.cluster/env/*/.complete ~/.cluster/runtime/*/.complete; do
            [ $made -nt /var/lib/cloud/data/instance-id ] || echo before
        done
        cut -d' ' -f2 /etc/ssh/ssh_host_ed25519_key.pub
    """
    seen = project.run("exec", "--", "sh", "-c", look).stdout
    assert (seen.count("] 1\n"), seen.count("] before\n")) == (2, 4)
    assert len(set(re.findall(r"AAAA\S+", seen))) == 2  # each node has a key of its own
    assert project.run("train", "--", "printenv", "FROM_SETUP").stdout.count("kept value") == 2
    [image] = json.loads(project.run("image", "ls", "--json").stdout)
    project.run("image", "rm", image["name"], "--yes")
    assert project.run("image", "ls").stdout == "there are no baked images\n"
    assert "has no image for these settings" in project.run("up", "--nodes", "3", code=2).stderr
    until(lambda: not disk.exists(), "the disk of the deleted image is there")
