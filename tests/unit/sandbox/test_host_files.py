"""The files of a host, user data included, and the parts of the metadata service that need no host."""

import gzip
import json
import os
import subprocess
import time
from ipaddress import IPv4Interface
from pathlib import Path

import pytest

from ec2_sandbox.hosts.cloud_init import CLOUD, OUTPUT_LOG, RUNNER, STATE, find_type, render_first_boot
from ec2_sandbox.hosts.files import (
    HostFile,
    render_accounts,
    render_identity,
    render_network,
)
from ec2_sandbox.hosts.metadata import Tokens

PASSWD = """\
root:x:0:0:root:/root:/bin/bash
sshd:x:101:65534::/run/sshd:/usr/sbin/nologin
alice:x:1000:1000:Alice:/home/alice:/bin/zsh
ubuntu:x:1001:1001::/home/ubuntu:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
a broken line
"""
GROUP = """\
root:x:0:
sudo:x:27:alice
video:x:44:
docker:x:998:alice
alice:x:1000:
nogroup:x:65534:
"""


def by_path(files: tuple[HostFile, ...]) -> dict[str, HostFile]:
    return {file.path: file for file in files}


@pytest.fixture
def accounts() -> dict[str, HostFile]:
    return by_path(render_accounts(PASSWD, GROUP))


def test_hosts_have_the_machines_system_accounts_only(accounts: dict[str, HostFile]) -> None:
    names = [line.split(":")[0] for line in accounts["/etc/passwd"].content.splitlines()]
    assert names == ["root", "sshd", "nobody", "ubuntu"]
    assert "alice" not in "".join(file.content for file in accounts.values())


def test_the_user_has_ec2s_uid_and_groups(accounts: dict[str, HostFile]) -> None:
    assert accounts["/etc/passwd"].content.endswith("ubuntu:x:1000:1000:Ubuntu:/home/ubuntu:/bin/bash\n")
    assert accounts["/etc/group"].content.splitlines() == [
        "root:x:0:", "sudo:x:27:ubuntu", "video:x:44:ubuntu", "docker:x:998:", "nogroup:x:65534:", "ubuntu:x:1000:",
    ]  # fmt: skip


def test_accounts_have_no_password_and_are_not_locked(accounts: dict[str, HostFile]) -> None:
    shadow = accounts["/etc/shadow"]
    assert shadow.mode == 0o640
    assert {line.split(":")[1] for line in shadow.content.splitlines()} == {"*"}


@pytest.mark.parametrize("domain", ["ec2.internal", "eu-west-1.compute.internal"])
def test_the_hosts_name_resolves_to_its_address(domain: str) -> None:
    files = by_path(render_identity(f"ip-10-1-2-3.{domain}", "10.1.2.3", "10.1.0.2", "00ff"))
    assert files["/etc/hosts"].content.splitlines()[1] == f"10.1.2.3 ip-10-1-2-3.{domain} ip-10-1-2-3"
    assert files["/etc/hostname"].content == "ip-10-1-2-3\n"
    assert files["/etc/resolv.conf"].content == f"nameserver 10.1.0.2\nsearch {domain}\n"


@pytest.mark.parametrize("machine", ["10.1.0.1", "10.7.0.1"])
@pytest.mark.parametrize("public_ip", ["198.18.0.9", None])
def test_network(public_ip: str | None, machine: str) -> None:
    batch = render_network(IPv4Interface("10.1.2.3/16"), public_ip, "198.18.0.0/20", machine, 9001).splitlines()
    assert "addr add 10.1.2.3/16 brd + dev eth0" in batch
    assert "route add 169.254.169.254/32 dev eth0 src 10.1.2.3" in batch
    # Like EC2's gateway: a host reaches public addresses from its own public address, and none without one.
    assert ("route add 198.18.0.0/20 dev eth0 src 198.18.0.9" in batch) == (public_ip is not None)
    from_another_vpc = public_ip is not None and machine == "10.7.0.1"
    assert (f"route add {machine} dev eth0 src 198.18.0.9" in batch) == from_another_vpc
    assert ("addr add 198.18.0.9/32 dev lo" in batch) == (public_ip is not None)
    assert "route add default via 10.1.0.1 dev eth0" in batch
    assert not [line for line in batch if "None" in line]


# --- user data

FOLDER = "/var/lib/cloud/instances/i-1"


def scripts_of(user_data: bytes) -> dict[str, str]:
    return {path: content for path, content in paths_of(user_data).items() if "part-" in path}


def paths_of(user_data: bytes) -> dict[str, str]:
    return {file.path: file.content for file in render_first_boot("i-1", user_data, has_cloud_init=False)}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("#!/bin/sh\ntrue\n", "text/x-shellscript"),
        ("#cloud-config\n{}\n", "text/cloud-config"),
        ("#cloud-boothook\ntrue\n", "text/cloud-boothook"),
        ("just text", "text/plain"),
    ],
)
def test_the_first_line_is_the_type(text: str, kind: str) -> None:
    assert find_type(text) == kind
    assert scripts_of(gzip.compress(text.encode())) == scripts_of(text.encode())


@pytest.mark.parametrize("broken", [b"\x1f\x8bno gzip", b"\xff\xfe\x00", b"MIME-Version: 1.0\n\n\xff"])
def test_invalid_user_data_is_not_a_script(broken: bytes) -> None:
    assert not any("part-" in path for path in paths_of(broken))


def test_boot_finished_exists_after_the_last_line_on_the_console(tmp_path: Path) -> None:
    """This holds even if `tee` is slow, and a script leaves a process that keeps the pipe open."""
    runner_path = str(tmp_path / "runner")
    folders = {
        CLOUD: str(tmp_path),
        OUTPUT_LOG: str(tmp_path / "log"),
        STATE: str(tmp_path / "run"),
        RUNNER: runner_path,
    }
    script = b"#!/bin/sh\nsleep 60 & echo $! >" + str(tmp_path / "left").encode() + b"\necho the script ran\n"
    for file in render_first_boot("i-1", script, has_cloud_init=False):
        path = Path(replace_all(file.path, folders))
        if not file.path.startswith((CLOUD, RUNNER)):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.link:
            path.symlink_to(file.content)
        else:
            path.write_text(replace_all(file.content, folders))
            path.chmod(file.mode)
    tee = tmp_path / "bin" / "tee"
    tee.parent.mkdir()
    tee.write_text('#!/bin/sh\n[ "$1" != -a ] || sleep 0.7\nPATH=/usr/bin:/bin exec tee "$@"\n')
    tee.chmod(0o755)
    finished, console = tmp_path / "instance" / "boot-finished", tmp_path / "console"
    with console.open("wb") as stream:
        runner = subprocess.Popen(
            [runner_path], stdout=stream, env={**os.environ, "PATH": f"{tee.parent}:/usr/bin:/bin"}
        )
    try:
        deadline = time.monotonic() + 20
        while not finished.exists():
            assert time.monotonic() < deadline, console.read_text()
            time.sleep(0.001)
        said = console.read_text().splitlines()
        assert said[0] == "the script ran"
        assert said[-1].startswith("Cloud-init v. sandbox finished at ")
        assert finished.read_text() == said[-1] + "\n"
        assert json.loads((tmp_path / "run/result.json").read_text())["v1"]["errors"] == []
        assert json.loads((tmp_path / "run/status.json").read_text())["v1"]["stage"] is None
        assert runner.poll() is None
    finally:
        os.kill(int((tmp_path / "left").read_text()), 9)
        runner.wait(20)


def replace_all(text: str, words: dict[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text


# --- metadata


def test_a_token_belongs_to_one_instance_until_it_expires() -> None:
    now = [1000.0]
    tokens = Tokens(clock=lambda: now[0])
    token = tokens.issue("i-1", 60)
    assert tokens.is_good("i-1", token)
    assert not tokens.is_good("i-2", token)
    assert not Tokens(clock=lambda: now[0]).is_good("i-1", token)
    now[0] += 60.1
    assert not tokens.is_good("i-1", token)


def test_invalid_tokens_are_refused() -> None:
    tokens = Tokens()
    for token in ("", "x", "é", "A" * 56, tokens.issue("i-1", 60)[:-4]):
        assert not tokens.is_good("i-1", token), token
