"""The files of a host, user data included, and the parts of the metadata service that need no host."""

import gzip

import pytest

from ec2_sandbox.hosts.cloud_init import find_type, render_first_boot
from ec2_sandbox.hosts.files import HostFile, render_accounts
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


def test_accounts_are_the_machines_system_accounts_and_the_user() -> None:
    """Nobody has a password, and nobody is locked, which sshd would refuse."""
    accounts = by_path(render_accounts(PASSWD, GROUP))
    assert [line.split(":")[0] for line in accounts["/etc/passwd"].content.splitlines()] == [
        "root", "sshd", "nobody", "ubuntu",
    ]  # fmt: skip
    assert accounts["/etc/passwd"].content.endswith("ubuntu:x:1000:1000:Ubuntu:/home/ubuntu:/bin/bash\n")
    assert accounts["/etc/group"].content.splitlines() == [
        "root:x:0:", "sudo:x:27:ubuntu", "video:x:44:ubuntu", "docker:x:998:", "nogroup:x:65534:", "ubuntu:x:1000:",
    ]  # fmt: skip
    shadow = accounts["/etc/shadow"]
    assert (shadow.mode, {line.split(":")[1] for line in shadow.content.splitlines()}) == (0o640, {"*"})


def scripts_of(user_data: bytes) -> dict[str, str]:
    files = render_first_boot("i-1", user_data, has_cloud_init=False)
    return {file.path: file.content for file in files if "part-" in file.path}


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
    assert not scripts_of(broken)


def test_a_token_belongs_to_one_instance_until_it_expires() -> None:
    now = [1000.0]
    tokens = Tokens(clock=lambda: now[0])
    token = tokens.issue("i-1", 60)
    assert tokens.is_good("i-1", token)
    assert not tokens.is_good("i-2", token)
    assert not Tokens(clock=lambda: now[0]).is_good("i-1", token)
    now[0] += 60.1
    assert not tokens.is_good("i-1", token)
