"""What runs on hosts as on EC2: cloud-init's own stages, and the daemons of packages, by systemctl."""

from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

from sandbox_steps import RunningSandbox, Ssh, enter, launch, start_sandbox
from waits import until

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

pytestmark = pytest.mark.sandbox

UNIT = """\
[Service]
Type=simple
User=ubuntu
Environment=GREETING=hello
ExecStart=/bin/sh -c 'echo "$GREETING from $(id -un)" >/tmp/greeting; exec sleep 4321'
[Install]
WantedBy=multi-user.target
"""
USER_DATA = """\
#cloud-config
users:
  - default
  - name: alice
    ssh_authorized_keys: ["{key}"]
write_files:
  - {{path: /etc/written, content: "by cloud-init\\n", owner: "alice:alice", defer: true}}
packages: [nginx-light]
runcmd:
  - systemctl enable --now nginx
  - echo runcmd ran
"""


def test_systemctl_runs_the_commands_of_a_unit_file(
    sandbox: RunningSandbox, pair: "list[InstanceTypeDef]", ssh: Ssh
) -> None:
    address = pair[0]["PrivateIpAddress"]
    ssh.run(address, "sudo tee /etc/systemd/system/greeter.service", stdin=UNIT)
    ssh.run(address, "sudo systemctl daemon-reload && sudo systemctl enable --now greeter")
    assert ssh.read(address, "systemctl is-active greeter; systemctl is-enabled greeter") == "active\nenabled"
    until(lambda: "hello" in ssh.run(address, "cat /tmp/greeting", check=False).stdout, "it does not start")
    assert ssh.read(address, "cat /tmp/greeting") == "hello from ubuntu"
    ssh.run(address, "sudo systemctl restart greeter.service && sudo systemctl stop greeter")
    assert ssh.run(address, "systemctl is-active greeter", check=False).stdout == "inactive\n"
    assert "sleep 4321" not in ssh.read(address, "ps -eo args")
    refused = ssh.run(address, "sudo systemctl start apt-daily.timer", check=False)
    assert (refused.returncode, "hosts have no systemd" in refused.stderr) == (1, True)
    assert ssh.run(address, "sudo systemctl start nothing", check=False).returncode != 0


def test_systemctl_reloads_sshd(sandbox: RunningSandbox, pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    address = pair[1]["PrivateIpAddress"]
    ssh.run(
        address, "echo 'SetEnv RELOADED=yes' | sudo tee /etc/ssh/sshd_config.d/one.conf && sudo systemctl restart ssh"
    )
    until(lambda: ssh.run(address, "echo $RELOADED", check=False).stdout == "yes\n", "sshd keeps its settings")
    ssh.run(address, "sudo rm /etc/ssh/sshd_config.d/one.conf && sudo systemctl reload sshd")


def test_users_without_a_password_log_in(sandbox: RunningSandbox, pair: "list[InstanceTypeDef]", ssh: Ssh) -> None:
    address = pair[0]["PrivateIpAddress"]
    ssh.run(address, "sudo useradd -m bob && sudo cp -r ~/.ssh /home/bob && sudo chown -R bob /home/bob/.ssh")
    assert ssh.read(address, "sudo grep -o '^bob:!' /etc/shadow") == "bob:!"
    assert ssh.read(f"bob@{address}", "id -un") == "bob"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cloud_init_runs_a_cloud_config(own_project: Path, monkeypatch: pytest.MonkeyPatch, ssh: Ssh) -> None:
    enter(start_sandbox(own_project, packages=("cloud-init", "nginx-light")), monkeypatch)
    key = ssh.key.with_suffix(".pub").read_text().strip()
    [host] = launch(ssh, 1, timeout_s=600, UserData=USER_DATA.format(key=key))
    address = host["PrivateIpAddress"]
    ended = "test -e /run/cloud-init/result.json"
    until(lambda: ssh.run(address, ended, check=False).returncode == 0, "cloud-init does not end", timeout_s=300)
    assert ssh.read(address, "cloud-init status --wait | tail -n 1; cloud-id").endswith("status: done\naws")
    assert ssh.read(f"alice@{address}", "id -un; cat /etc/written; stat -c %U /etc/written").split("\n") == [
        "alice", "by cloud-init", "alice",
    ]  # fmt: skip
    assert ssh.read(address, "systemctl is-active nginx; curl -sI localhost | head -n 1").startswith("active\nHTTP/1.1")
    console = boto3.client("ec2").get_console_output(InstanceId=host["InstanceId"])["Output"]
    assert "runcmd ran" in console
    assert "Datasource DataSourceEc2Local" in console
    keys = ssh.read(address, "cat /etc/ssh/ssh_host_ed25519_key.pub")
    assert keys in console


def test_without_cloud_init_the_console_says_what_did_not_run(sandbox: RunningSandbox, ssh: Ssh) -> None:
    [host] = launch(ssh, 1, UserData="#cloud-config\nruncmd: [touch /srv/ran]\n")
    assert ssh.read(host["PrivateIpAddress"], "cloud-init status --wait; ls /srv") == "status: done"
    console = boto3.client("ec2").get_console_output(InstanceId=host["InstanceId"])["Output"]
    assert "does not run without cloud-init: ec2-sandbox install cloud-init" in console
