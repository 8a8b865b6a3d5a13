"""A project outside this one, with the built wheel and pytest: ten lines of test, as root and as an ordinary user."""

import os
import shutil
import signal
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
SPOT = '''
import socket, subprocess
import pytest
from ec2_sandbox import Sandbox, fault

WAIT = {"Delay": 0.1, "MaxAttempts": 900}
UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
NOTICE = """T=$(curl -sX PUT 169.254.169.254/latest/api/token -H 'X-aws-ec2-metadata-token-ttl-seconds: 60')
curl -s 169.254.169.254/latest/meta-data/spot/instance-action -H "X-aws-ec2-metadata-token: $T" """


def test_a_spot_instance(ec2_sandbox: Sandbox, tmp_path):
    ec2, key = ec2_sandbox.client("ec2"), tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text(ec2.create_key_pair(KeyName="key")["KeyMaterial"])
    ec2.authorize_security_group_ingress(GroupName="default", IpProtocol="tcp", FromPort=22, ToPort=22,
                                         CidrIp="0.0.0.0/0")
    image = ec2_sandbox.client("ssm").get_parameter(Name=UBUNTU)["Parameter"]["Value"]
    [spot] = ec2.run_instances(ImageId=image, InstanceType="t3.micro", KeyName="key", MinCount=1, MaxCount=1,
                               InstanceMarketOptions={"MarketType": "spot"})["Instances"]
    ec2.get_waiter("instance_running").wait(InstanceIds=[spot["InstanceId"]], WaiterConfig=WAIT)
    host = ec2_sandbox.hosts[spot["InstanceId"]]
    options = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
    ssh = ("ssh", "-i", key, *options, f"ubuntu@{host.public_ip}")
    assert subprocess.check_output((*ssh, "hostname"), text=True).startswith("ip-10-")
    with pytest.raises(TimeoutError):
        socket.create_connection((host.public_ip, 8080), timeout=0.5)  # not open in the security group
    ec2_sandbox.faults.add(fault("spot-notice", instance=host.instance_id))
    assert '"action": "terminate"' in subprocess.check_output((*ssh, NOTICE), text=True)
    ec2_sandbox.faults.add(fault("spot-notice", instance=host.instance_id, after_s=0))
    ec2.get_waiter("instance_terminated").wait(InstanceIds=[host.instance_id], WaiterConfig=WAIT)
'''
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
WAITING = """
import time

def test_waiting(ec2_sandbox):
    print(ec2_sandbox.endpoint_url, flush=True)
    time.sleep(600)
"""
UNUSED = """
import sys

def test_nothing_is_imported():
    assert not {"moto", "boto3", "click", "msgspec"} & set(sys.modules)
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
        for name, text in (("spot", SPOT), ("isolated", ISOLATED), ("waiting", WAITING), ("unused", UNUSED)):
            (user.source / f"test_{name}.py").write_text(text)
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


def test_the_plugin_imports_nothing_until_it_is_used(stranger: User) -> None:
    as_root(stranger, *PYTEST, "test_unused.py")


def test_a_spot_instance_as_root(stranger: User) -> None:
    as_root(stranger, *PYTEST, "test_spot.py")


@pytest.mark.parametrize("parallel", [(), ("-n", "2")])
def test_isolation_as_root(parallel: tuple[str, ...], stranger: User) -> None:
    done = as_root(stranger, *PYTEST, "--strict-markers", *parallel, "test_isolated.py")
    assert "6 passed" in done.stdout


def test_ctrl_c_removes_the_sandbox(stranger: User) -> None:
    words = (*PYTEST, "-s", "test_waiting.py")
    with subprocess.Popen(
        words, cwd=stranger.source, env=root_environment(stranger), stdout=subprocess.PIPE, text=True
    ) as pytest_:
        assert pytest_.stdout is not None
        until(lambda: "https://" in str(pytest_.stdout.readline()), "the test does not begin")
        pytest_.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in pytest_.stdout.read()
    assert not find_left(stranger)


@NEEDS_NAMESPACES
def test_a_spot_instance_without_root(stranger: User) -> None:
    done = as_user(stranger, ".venv/bin/pytest", "-q", "test_spot.py")
    assert "1 passed" in done.stdout
    assert done.stderr.count("running pytest again in your namespaces") == 1


@NEEDS_NAMESPACES
def test_in_parallel_without_root(stranger: User) -> None:
    asked = "-q -n 2 --deselect test_isolated.py::test_without_it test_isolated.py"  # in the shell, all have it
    refused = as_user(stranger, ".venv/bin/pytest", *asked.split(), check=False)
    command = f"ec2-sandbox shell -- pytest {asked}"
    assert (refused.returncode, f"try: {command}" in refused.stdout) == (1, True), refused.stdout
    done = as_user(stranger, "sh", "-c", f"PATH=$PWD/.venv/bin:$PATH; {command}")
    assert "5 passed" in done.stdout
