"""`cluster sandbox install`: hosts get packages that the machine does not have."""

import shutil
from pathlib import Path

import pytest

from ec2_sandbox import control
from project import Project
from sandbox_steps import RunningSandbox, Ssh, enter, launch

pytestmark = pytest.mark.sandbox

SMALL = "tree"  # 54 kB, with no other dependency than the C library
needs_absence = pytest.mark.skipif(shutil.which(SMALL) is not None, reason=f"the machine has {SMALL} itself")


def test_without_a_sandbox_install_fails(project: Project) -> None:
    failed = project.run("sandbox", "install", SMALL, code=1)
    assert "the sandbox of this folder is not running" in failed.stderr
    assert "cluster sandbox start" in failed.stderr


@needs_absence
@pytest.mark.slow
def test_packages_on_running_and_on_later_hosts(project: Project, monkeypatch: pytest.MonkeyPatch, ssh: Ssh) -> None:
    project.run("sandbox", "start")
    enter_sandbox(project.directory, monkeypatch)
    [first] = launch(ssh, 1)
    assert ssh.run(first["PrivateIpAddress"], f"command -v {SMALL}", check=False).returncode != 0
    assert f"{SMALL}: installed on 1 hosts" in project.run("sandbox", "install", SMALL).stderr
    [second] = launch(ssh, 1)
    for host in (first, second):
        assert ssh.read(host["PrivateIpAddress"], f"{SMALL} --version && dpkg -s {SMALL} | grep Status").endswith(
            "ok installed"
        )
    assert shutil.which(SMALL) is None
    failed = project.run("sandbox", "install", "no-such-package-anywhere", code=1)
    assert "Unable to locate package no-such-package-anywhere" in failed.stderr
    assert "this machine already has them" in project.run("sandbox", "install", "coreutils").stderr


def enter_sandbox(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = control.find_required(directory)
    enter(RunningSandbox(project_dir=directory, info=info, environment=control.environment(info)), monkeypatch)
