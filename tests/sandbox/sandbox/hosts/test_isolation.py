"""Other users of the machine cannot harm a sandbox, and root in a host cannot harm the machine.

The tests try each action as that user.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

from ec2_sandbox import control
from ec2_sandbox.paths import SandboxPaths, paths_of
from sandbox_steps import RunningSandbox, Ssh, enter, find_image, find_live, launch, start_sandbox, wait_for

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

pytestmark = pytest.mark.sandbox

NOBODY = 65534
LISTS = "import os, sys; print(os.listdir(sys.argv[1]))"
READS = "import sys; print(open(sys.argv[1]).read())"
CONNECTS = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
LAUNCHES = """
import ssl, sys, urllib.error, urllib.request
url, image = sys.argv[1:]
body = f"Action=RunInstances&Version=2016-11-15&MinCount=1&MaxCount=1&ImageId={image}&UserData=aWQ="
try:
    answer = urllib.request.urlopen(url, body.encode(), context=ssl._create_unverified_context())
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode())
"""
SETTING = "/proc/sys/kernel/core_pattern"  # of the machine, which root in a host must not change


@pytest.fixture
def host(pair: "list[InstanceTypeDef]") -> "InstanceTypeDef":
    return pair[0]


@pytest.fixture
def paths(sandbox: RunningSandbox) -> SandboxPaths:
    return paths_of(sandbox.project_dir)


def as_nobody(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as the user with the fewest rights on the machine."""
    return subprocess.run(
        ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", *words),
        capture_output=True, text=True, check=False, cwd="/", timeout=60,
    )  # fmt: skip


def pid_of(sandbox: RunningSandbox, host: "InstanceTypeDef") -> int:
    [status] = [one for one in control.describe(sandbox.project_dir).hosts if one.instance_id == host["InstanceId"]]
    assert status.pid is not None
    return status.pid


# --- another user of the machine


def test_another_user_cannot_read_the_folder(paths: SandboxPaths, host: "InstanceTypeDef") -> None:
    python = sys.executable if as_nobody(sys.executable, "-c", "").returncode == 0 else "/usr/bin/python3"
    assert "PermissionError" in as_nobody(python, "-c", LISTS, str(paths.state_dir)).stderr
    files = [
        path for path in paths.state_dir.rglob("*") if path.is_file() and not path.is_relative_to(paths.system_dir)
    ]
    assert {paths.api_log, paths.settings_file, paths.ca_file} <= set(files)
    for path in files:
        assert "PermissionError" in as_nobody(python, "-c", READS, str(path)).stderr, path
    assert "PermissionError" in as_nobody(python, "-c", CONNECTS, str(paths.control_socket)).stderr


def test_another_user_cannot_call_the_api(sandbox: RunningSandbox) -> None:
    """Such a call could run a program as root in a host, by user data. See also api/test_signatures.py."""
    before = find_live(boto3.client("ec2"))
    python = sys.executable if as_nobody(sys.executable, "-c", "").returncode == 0 else "/usr/bin/python3"
    done = as_nobody(python, "-c", LAUNCHES, sandbox.info.endpoint_url, find_image())
    assert done.stdout.startswith("403 "), done
    assert "MissingAuthenticationToken" in done.stdout
    assert find_live(boto3.client("ec2")) == before


def test_another_user_cannot_enter_a_host(
    sandbox: RunningSandbox, host: "InstanceTypeDef", ssh: Ssh, tmp_path: Path
) -> None:
    entered = as_nobody("nsenter", f"--target={pid_of(sandbox, host)}", "--user", "--mount", "id")
    assert "denied" in entered.stderr or "not permitted" in entered.stderr  # the latter since util-linux 2.41
    key = tmp_path / "id"
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)), check=True)
    for user in ("ubuntu", "root", "nobody"):
        address = f"{user}@{host['PrivateIpAddress']}"
        words = ("ssh", "-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-i", str(key),
                 "-o", "UserKnownHostsFile=/dev/null", "-o", "IdentitiesOnly=yes", address, "id")  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, "Permission denied" in done.stderr) == (255, True), done


def test_another_users_sandbox_is_reported_as_such(sandbox: RunningSandbox) -> None:
    program = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[2:]; from ec2_sandbox import control; "
        "control.describe(Path(sys.argv[1]))"
    )
    rights = "import os; os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534); "
    words = (sys.executable, "-c", f"from ec2_sandbox import control; {rights}{program}", str(sandbox.project_dir))
    done = subprocess.run((*words, *sys.path), capture_output=True, text=True, check=False, timeout=60)
    assert "was started by another user" in done.stderr, done


# --- root in a host


def test_root_in_a_host_is_an_ordinary_user_of_the_machine(sandbox: RunningSandbox, host: "InstanceTypeDef") -> None:
    lines = Path(f"/proc/{pid_of(sandbox, host)}/status").read_text().splitlines()
    ids = {int(word) for line in lines if line.startswith(("Uid:", "Gid:")) for word in line.split()[1:]}
    assert len(ids) == 1
    assert min(ids) > 1 << 16


def test_root_in_a_host_cannot_change_the_machines_settings(host: "InstanceTypeDef", ssh: Ssh) -> None:
    before = Path(SETTING).read_text()
    new_proc = "mkdir -p /tmp/proc; mount -t proc proc /tmp/proc"
    for command in (
        f"echo 7 >{SETTING}",
        f"umount /proc/sys/kernel; umount -l /proc; echo 7 >{SETTING}",
        f"{new_proc} && echo 7 >/tmp{SETTING}",
        f"unshare --mount --pid --fork --mount-proc sh -c 'echo 7 >{SETTING}'",
        f"mount -o remount,rw /proc; echo 7 >{SETTING}",
    ):
        # In a mount namespace of its own, so that it does not affect other tests.
        wrapped = f"sudo unshare --mount sh -c {subprocess.list2cmdline([command])}"
        done = ssh.run(host["PrivateIpAddress"], wrapped, check=False)
        assert done.returncode != 0, command
        assert Path(SETTING).read_text() == before


def test_root_in_a_host_cannot_change_the_machines_cgroups(
    host: "InstanceTypeDef", ssh: Ssh, paths: SandboxPaths, sandbox: RunningSandbox
) -> None:
    address = host["PrivateIpAddress"]
    # It has a subtree of its own ...
    ssh.run(address, "sudo sh -euc 'mkdir /sys/fs/cgroup/mine; echo $$ >/sys/fs/cgroup/mine/cgroup.procs'")
    assert paths.cgroup is not None
    assert (paths.cgroup / host["InstanceId"] / "mine").is_dir()
    # ... and cannot leave it.
    ssh.run(address, "sudo unshare --mount sh -euc 'mount -t cgroup2 none /mnt; mkdir /mnt/also-mine'")
    assert (paths.cgroup / host["InstanceId"] / "also-mine").is_dir()
    for name in ("memory", "devices", "cpu"):
        escape = f"mount -t cgroup -o {name} none /mnt && mkdir /mnt/escaped"
        assert ssh.run(address, f"sudo unshare --mount sh -c '{escape}'", check=False).returncode != 0
    found = subprocess.run(("find", "/sys/fs/cgroup", "-name", "escaped"), capture_output=True, text=True, check=True)
    assert found.stdout == ""
    ssh.run(address, "sudo rmdir /sys/fs/cgroup/mine /sys/fs/cgroup/also-mine")


@pytest.mark.parametrize(
    "command",
    [
        "date -s @0", "sysctl -w kernel.hostname=mine", "mknod /tmp/disk b 7 0","dmesg",
        "mount -t debugfs none /mnt","echo b >/proc/sysrq-trigger", "cat /proc/kcore",
        "losetup -f /etc/hostname",
    ],
)  # fmt: skip
def test_root_in_a_host_cannot_reach_the_machine(command: str, host: "InstanceTypeDef", ssh: Ssh) -> None:
    done = ssh.run(host["PrivateIpAddress"], f"sudo unshare --mount sh -c '{command}'", check=False)
    assert done.returncode != 0, done


def test_a_host_cannot_read_what_the_machines_users_cannot(
    own_project: Path, monkeypatch: pytest.MonkeyPatch, ssh: Ssh
) -> None:
    """For /etc and /var, see tests/unit/sandbox/test_system.py."""
    with tempfile.TemporaryDirectory(dir="/opt", prefix="cluster-test-") as folder:
        planted = Path(folder)
        planted.chmod(0o755)
        (planted / "program").write_text("for everybody")
        (planted / "key").write_text("secret")
        (planted / "key").chmod(0o600)
        (planted / "closed").mkdir(mode=0o700)
        (planted / "closed/key").write_text("secret")
        enter(start_sandbox(own_project), monkeypatch)
        [host] = launch(ssh, 1)
        assert ssh.read(host["PrivateIpAddress"], f"sudo ls -R {folder}") == f"{folder}:\nprogram"
        # The same is true after root in the host has removed the layer above, and after a reboot.
        ssh.run(host["PrivateIpAddress"], "sudo rm -rf /.overlay/opt/upper && sudo mkdir /.overlay/opt/upper")
        stopped = [host["InstanceId"]]
        ec2 = boto3.client("ec2")
        ec2.stop_instances(InstanceIds=stopped)
        wait_for(ec2, "instance_stopped", stopped)
        ec2.start_instances(InstanceIds=stopped)
        wait_for(ec2, "instance_running", stopped)
        assert ssh.read(host["PrivateIpAddress"], f"sudo ls -R {folder}") == f"{folder}:\nprogram"
