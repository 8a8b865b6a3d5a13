"""A project outside this one, with the built wheel and pytest: ten lines of test, as root and as an ordinary user."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ec2_sandbox import control
from ordinary_user import NEEDS_NAMESPACES, UID, UV, User
from project import REPOSITORY
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(1200)]

PYTEST = (".venv/bin/pytest", "-q", "-p", "no:cacheprovider")  # as root, whose files the user cannot write
ISOLATED = """
import os, subprocess, sys
import boto3, pytest


@pytest.mark.parametrize("number", range(4))
def test_isolated(ec2_sandbox, number):
    s3 = boto3.client("s3")
    assert s3.list_buckets()["Buckets"] == [] and ec2_sandbox.faults.list() == ()
    s3.create_bucket(Bucket="bucket")
    ec2_sandbox.faults.add("throttle action=RunInstances")
    child = "import boto3; print(boto3.client('s3').list_buckets()['Buckets'][0]['Name'])"
    assert subprocess.check_output((sys.executable, "-c", child), text=True) == "bucket\\n"


@pytest.mark.ec2_sandbox(hosts="none", region="eu-west-1", faults=["capacity"])
def test_settings(ec2_sandbox):
    assert boto3.client("ec2").meta.region_name == "eu-west-1"
    assert [one.kind for one in ec2_sandbox.faults.list()] == ["capacity"]


def test_without_it():
    assert "AWS_ENDPOINT_URL" not in os.environ
"""


@pytest.fixture(scope="module")
def stranger() -> Iterator[User]:
    """An ordinary user whose project has an environment with the wheel."""
    home = Path(tempfile.mkdtemp(prefix="stranger-", dir="/tmp"))  # whose parent folders are open to all
    user = User(home=home)
    try:
        source = shutil.copytree(
            REPOSITORY / "sandbox", home / "source", ignore=shutil.ignore_patterns("build", "*.egg-info")
        )
        words = ("build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable, "-o", home, source)
        subprocess.run((UV, *words), check=True, cwd=home)
        [wheel] = home.glob("*.whl")
        user.source.mkdir()
        (home / "tmp").mkdir()
        environment = user.source / ".venv"
        subprocess.run((UV, "venv", "--quiet", "--python", "/usr/bin/python3", environment), check=True)
        copied = ("--quiet", "--python", environment / "bin/python", "--link-mode", "copy")
        subprocess.run((UV, "pip", "install", *copied, wheel, "pytest", "pytest-xdist"), check=True)
        (user.source / "test_isolated.py").write_text(ISOLATED)
        for path in (home, *home.rglob("*")):
            os.chown(path, UID, UID, follow_symlinks=False)
        yield user
    finally:
        shutil.rmtree(home)


@pytest.fixture(autouse=True)
def _nothing_is_left(stranger: User) -> Iterator[None]:
    yield
    until(lambda: not find_left(stranger) and not stranger.processes(), "a sandbox is left", timeout_s=300)


def find_left(stranger: User) -> list[Path]:
    """The folders of sandboxes that are there, those that tests started as root and those of the user."""
    roots = [Path(one.folder) for one in control.list_all() if one.folder]
    users = stranger.home / ".local/state/ec2-sandbox/sandboxes"
    return [*(one for one in roots if one.is_relative_to(stranger.home)), *(users.iterdir() if users.exists() else ())]


def root_environment(stranger: User) -> dict[str, str]:
    """With a folder for temporary files that tells the sandboxes of these tests from others."""
    (stranger.home / "root").mkdir(exist_ok=True)
    return {**os.environ, "TMPDIR": str(stranger.home / "root")}


def as_root(stranger: User, *words: str) -> subprocess.CompletedProcess[str]:
    environment = root_environment(stranger)
    done = subprocess.run(
        words, cwd=stranger.source, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done


def as_user(stranger: User, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    # Another run's user has the same name, and pytest's folder for temporary files in /tmp.
    return stranger.run("env", f"TMPDIR={stranger.home / 'tmp'}", *words, check=check)


@pytest.mark.parametrize("parallel", [(), ("-n", "2")])
def test_isolation_as_root(parallel: tuple[str, ...], stranger: User) -> None:
    done = as_root(stranger, *PYTEST, "--strict-markers", *parallel, "test_isolated.py")
    assert "6 passed" in done.stdout


@NEEDS_NAMESPACES
def test_isolation_without_root(stranger: User) -> None:
    done = as_user(stranger, ".venv/bin/pytest", "-q", "test_isolated.py")
    assert "6 passed" in done.stdout
    assert done.stderr.count("running pytest again in your namespaces") == 1


@NEEDS_NAMESPACES
def test_in_parallel_without_root(stranger: User) -> None:
    asked = "-q -n 2 --deselect test_isolated.py::test_without_it test_isolated.py"  # in the shell, all have it
    refused = as_user(stranger, ".venv/bin/pytest", *asked.split(), check=False)
    command = f"ec2-sandbox shell -- pytest {asked}"
    assert (refused.returncode, f"try: {command}" in refused.stdout) == (1, True), refused.stdout
    done = as_user(stranger, "sh", "-c", f"PATH=$PWD/.venv/bin:$PATH; {command}")
    assert "5 passed" in done.stdout
