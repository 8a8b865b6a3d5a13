"""The sandbox of an ordinary user, as that user, without sudo."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordinary_user import NEEDS_NAMESPACES, SUBORDINATE_IDS, UID, User, ordinary_user
from sandbox_steps import UBUNTU
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(1200), NEEDS_NAMESPACES]

RUN_COMMAND = f"""
import boto3
ec2, ssm = boto3.client("ec2"), boto3.client("ssm")
image = ssm.get_parameter(Name="{UBUNTU}")["Parameter"]["Value"]
[host] = ec2.run_instances(ImageId=image, InstanceType="t3.micro", MinCount=1, MaxCount=1)["Instances"]
ids = [host["InstanceId"]]
ec2.get_waiter("instance_running").wait(InstanceIds=ids, WaiterConfig={{"Delay": 1, "MaxAttempts": 300}})
unit = "[Service]\\nExecStart=/bin/sleep 1234"
commands = ["id -un", "cat /sys/class/dmi/id/sys_vendor", f"printf '{{unit}}' >/etc/systemd/system/one.service",
            "systemctl start one && systemctl is-active one", "dpkg --configure --pending && echo installed"]
sent = ssm.send_command(InstanceIds=ids, DocumentName="AWS-RunShellScript", Parameters={{"commands": commands}})
where = {{"CommandId": sent["Command"]["CommandId"], "InstanceId": ids[0]}}
ssm.get_waiter("command_executed").wait(**where, WaiterConfig={{"Delay": 1, "MaxAttempts": 300}})
done = ssm.get_command_invocation(**where)
print(done["Status"], done["StandardOutputContent"], sep="\\n")
"""


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    with ordinary_user() as user:
        yield user


@pytest.fixture(autouse=True)
def _alone(user: User) -> None:
    """Waits until the namespaces are gone: they stay for a second after their last sandbox."""
    until(lambda: not user.processes(), "the user's namespaces stay")


def test_the_demo(user: User) -> None:
    done = user.run("examples/demo/mxnet")
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
    assert str(user.source) in user.cluster("sandbox", "list").stdout
    user.cluster("sandbox", "prune", "--yes")
    until(lambda: not user.processes(), "the user's namespaces stay")
    assert not (user.home / ".local/state/cluster/sandbox").exists()


def test_the_users_own_tools(user: User) -> None:
    listed = user.cluster("sandbox", "shell", "--", "sh", "-c", ".venv/bin/cluster sandbox list").stdout
    assert "running" in listed  # started for this shell
    until(lambda: not user.processes(), "the sandbox of the shell stays")
    user.cluster("sandbox", "start")
    assert "only programs in `cluster sandbox shell` reach" in user.cluster("sandbox", "env").stderr
    assert user.cluster("sandbox", "shell", "--", ".venv/bin/cluster", "sandbox", "env").stderr == ""
    below = user.run("sh", "-c", "cd docs && ../.venv/bin/cluster status")
    assert below.stderr.count("using ") == 1  # the command runs itself again in the namespaces
    program = "import boto3; print(boto3.client('ec2').describe_vpcs()['Vpcs'][0]['IsDefault'])"
    assert user.cluster("sandbox", "shell", "--", ".venv/bin/python", "-c", program).stdout == "True\n"
    assert user.cluster("sandbox", "shell", "--", "false", check=False).returncode == 1
    user.cluster("sandbox", "stop")


def test_commands_run_on_the_hosts(user: User) -> None:
    """Run Command enters the namespaces of a host, which are below the user's own."""
    user.cluster("sandbox", "start")
    done = user.cluster("sandbox", "shell", "--", ".venv/bin/python", "-c", RUN_COMMAND)
    assert done.stdout.split("\n")[:5] == ["Success", "root", "Amazon EC2", "active", "installed"]
    user.cluster("sandbox", "stop", "--yes")


def test_a_folder_on_an_overlay_is_refused(user: User) -> None:
    overlay = f"""mkdir -p /mnt/upper /mnt/folder "$HOME/.local/state"
        mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/folder "$HOME/.local/state"
        chown -R {UID} "$HOME/.local" """
    failed = user.cluster("sandbox", "start", extra=overlay, check=False)
    assert (failed.returncode, "which is on an overlay file system" in failed.stderr) == (1, True), failed.stderr
    assert "try: a volume or tmpfs at ~/.local/state" in failed.stderr


def _owned_processes() -> list[int]:
    """The pids of the processes of users in hosts, who have the user's subordinate ids."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid in SUBORDINATE_IDS:
                found.append(int(entry.name))
        except FileNotFoundError:
            continue
    return found
