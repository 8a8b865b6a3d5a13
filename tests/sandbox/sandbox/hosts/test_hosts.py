"""Hosts over real ssh: each is a machine of its own, and nothing of it outlives its sandbox."""

import os
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.exceptions import ClientError

from ec2_sandbox import control
from ec2_sandbox.paths import find_processes, paths_of
from foundation.progress import silent
from sandbox_steps import (
    RunningSandbox,
    Ssh,
    describe,
    enter,
    find_leftovers,
    launch,
    start_sandbox,
    state_of,
    wait_for,
)
from waits import until

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

pytestmark = pytest.mark.sandbox


def test_processes_are_the_hosts_own(pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    first, second = (host["PrivateIpAddress"] for host in pair)
    ssh.run(first, "exec -a only-on-the-first sleep 300 >/dev/null 2>&1 &")
    assert "only-on-the-first" in ssh.read(first, "ps -eo args")
    assert "only-on-the-first" not in ssh.read(second, "ps -eo args")
    assert "ec2_sandbox.daemon" not in ssh.read(first, "ps -eo args")


def test_programs_find_out_that_they_run_on_ec2(pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    [first, _] = pair
    told = ssh.read(
        first["PrivateIpAddress"],
        "cd /sys/class/dmi/id && cat sys_vendor board_asset_tag product_name && sudo cat product_uuid product_serial;"
        "cat product_uuid 2>/dev/null || echo refused; cat /sys/class/net/eth0/operstate; ls /sys/class/block;"
        "cat /sys/devices/virtual/dmi/id/bios_vendor /sys/devices/virtual/net/eth0/operstate; systemd-detect-virt",
    ).split("\n")
    assert told[:3] == ["Amazon EC2", first["InstanceId"], first["InstanceType"]]
    assert told[3] == told[4]
    assert uuid.UUID(told[3]).hex.startswith("ec2")
    assert told[5:] == ["refused", "up", "Amazon EC2", "up", "amazon"]


def test_orphans_are_reaped(pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    address = pair[0]["PrivateIpAddress"]
    ssh.run(address, "for i in 1 2 3; do setsid sh -c 'sleep 0.1 & exec true' & done; wait")
    until(lambda: ssh.run(address, "ps -eo stat | grep Z", check=False).stdout == "", "zombies stay")


def test_files_are_the_hosts_own(pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    first, second = (host["PrivateIpAddress"] for host in pair)
    for folder in ("/tmp", "/usr/local", "/etc", "/opt", "/home/ubuntu", "/var/tmp"):
        ssh.run(first, f"sudo sh -c 'echo mine > {folder}/of-the-first'")
        assert ssh.read(first, f"cat {folder}/of-the-first") == "mine"
        assert ssh.run(second, f"test -e {folder}/of-the-first", check=False).returncode == 1
        assert not Path(folder, "of-the-first").exists()


def test_hosts_do_not_see_the_machines_own_folders(pair: "list[InstanceTypeDef]", ssh: Ssh, tmp_path: Path) -> None:
    address = pair[0]["PrivateIpAddress"]
    (tmp_path / "secret").write_text("of the machine")
    assert (
        ssh.read(address, "ls -A /root /mnt /srv /media 2>/dev/null; sudo ls -A /root") == "/media:\n\n/mnt:\n\n/srv:"
    )
    assert ssh.read(address, "ls /home") == "ubuntu"
    assert ssh.run(address, f"sudo ls {tmp_path}", check=False).returncode != 0
    assert ssh.run(address, "sudo ls /var/lib/ec2-sandbox", check=False).returncode != 0
    system = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "usr", "opt", "var", "boot", "dev", "home",
              "media", "mnt", "proc", "root", "run", "srv", "sys", "tmp"}  # fmt: skip
    assert set(ssh.read(address, "ls /").split()) <= system
    assert ssh.read(address, "ls /dev/sd* /dev/vd* /dev/nvme* /dev/loop* /dev/mem 2>/dev/null || echo none") == "none"


def test_host_keys_and_accounts_are_new(pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    first, second = (host["PrivateIpAddress"] for host in pair)
    keys = "cat /etc/ssh/ssh_host_ed25519_key.pub"
    machine = Path("/etc/ssh/ssh_host_ed25519_key.pub")
    known = {ssh.read(first, keys), ssh.read(second, keys), machine.read_text().strip() if machine.exists() else ""}
    assert len(known) == 3
    shadow = ssh.read(first, "sudo cut -d : -f 2 /etc/shadow | sort -u")
    assert shadow == "*"
    assert ssh.read(first, "sudo cat /home/*/.ssh/authorized_keys") == ssh.key.with_suffix(".pub").read_text().strip()
    assert ssh.read(first, "stat -c %a ~/.ssh ~/.ssh/authorized_keys") == "700\n600"


def test_root_disk_has_the_volumes_size(sandbox: RunningSandbox, pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    size_gib = int(ssh.read(pair[0]["PrivateIpAddress"], "df --output=size -BG / | tail -n 1").rstrip("G"))
    assert 7 <= size_gib <= 8  # the Ubuntu image's volume, less the space reserved by the file system


def test_nothing_of_the_daemons_environment_leaks(
    sandbox: RunningSandbox, pair: "list[InstanceTypeDef]", ssh: Ssh
) -> None:
    address = pair[0]["PrivateIpAddress"]
    environments = ssh.read(address, "sudo sh -c 'cat /proc/[0-9]*/environ' | tr '\\0' '\\n' | cut -d = -f 1 | sort -u")
    assert not [name for name in environments.split() if name.startswith(("AWS", "PYENV", "CLUSTER"))]
    assert ssh.read(address, "echo $PATH") == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def test_termination_removes_the_host(sandbox: RunningSandbox, ssh: Ssh) -> None:
    ec2 = boto3.client("ec2")
    [host] = launch(ssh, 1)
    instance_id, address = host["InstanceId"], host["PrivateIpAddress"]
    folder = paths_of(sandbox.project_dir).hosts_dir / instance_id
    assert folder.exists()
    [ending] = ec2.terminate_instances(InstanceIds=[instance_id])["TerminatingInstances"]
    assert (ending["PreviousState"]["Name"], ending["CurrentState"]["Name"]) == ("running", "shutting-down")
    wait_for(ec2, "instance_terminated", [instance_id])
    until(lambda: not list(folder.parent.glob(f"{instance_id}*")), "its files stay")
    assert not list(find_processes(f"{paths_of(sandbox.project_dir).mark}:{instance_id}"))
    assert ssh.run(address, "true", check=False).returncode == 255


def test_a_rebooted_and_a_stopped_host_keep_their_disk(sandbox: RunningSandbox, ssh: Ssh) -> None:
    ec2 = boto3.client("ec2")
    [host] = launch(ssh, 1)
    ids, address = [host["InstanceId"]], host["PrivateIpAddress"]
    boot = "sudo cat /proc/1/stat | cut -d ' ' -f 22"
    key = ssh.read(
        address, "echo kept > ~/file; sudo sh -c 'echo kept > /etc/file; touch /run/new'; cat /etc/ssh/*.pub"
    )
    before = ssh.read(address, boot)
    ec2.reboot_instances(InstanceIds=ids)
    until(lambda: ssh.run(address, boot, check=False).stdout.strip() not in ("", before), "it does not reboot")
    assert ssh.read(address, "cat ~/file; test -e /run/new || echo booted") == "kept\nbooted"
    assert state_of(ec2, ids[0]) == "running"
    ec2.stop_instances(InstanceIds=ids)
    with pytest.raises(ClientError, match="IncorrectInstanceState"):
        ec2.reboot_instances(InstanceIds=ids)
    wait_for(ec2, "instance_stopped", ids)
    assert "PublicIpAddress" not in describe(ec2, ids)[0]
    ec2.start_instances(InstanceIds=ids)
    wait_for(ec2, "instance_running", ids)
    [again] = describe(ec2, ids)
    assert again["PrivateIpAddress"] == address
    assert again["PublicIpAddress"] != host["PublicIpAddress"]
    assert ssh.read(again["PublicIpAddress"], "cat ~/file /etc/file; cat /etc/ssh/*.pub") == f"kept\nkept\n{key}"


def test_the_daemons_death_ends_all_hosts(own_project: Path, monkeypatch: pytest.MonkeyPatch, ssh: Ssh) -> None:
    """For other damage, see tests/unit/sandbox/test_control.py."""
    running, paths = start_sandbox(own_project), paths_of(own_project)
    enter(running, monkeypatch)
    launch(ssh, 2)
    os.kill(running.info.daemon.pid, signal.SIGKILL)
    until(lambda: not find_leftovers(own_project).processes, "a process outlived the daemon")
    until(lambda: not find_leftovers(own_project).loop_devices, "a loop device outlived the daemon")
    until(lambda: not find_leftovers(own_project).interfaces, "an interface outlived the daemon")
    assert control.describe(own_project).state == "crashed"
    again = start_sandbox(own_project)  # which cleans up
    assert again.info.daemon.pid != running.info.daemon.pid
    paths.settings_file.write_text("{")
    assert control.describe(own_project).state == "crashed"
    assert control.reset(own_project, report=silent)
    assert not find_leftovers(own_project)
