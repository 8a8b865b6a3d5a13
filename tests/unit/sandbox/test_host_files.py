from ipaddress import IPv4Interface

import pytest

from sandbox.hosts.files import (
    HostFile,
    render_accounts,
    render_home,
    render_identity,
    render_network,
    render_services,
)

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


def test_system_accounts_stay_and_people_do_not(accounts: dict[str, HostFile]) -> None:
    names = [line.split(":")[0] for line in accounts["/etc/passwd"].content.splitlines()]
    assert names == ["root", "sshd", "nobody", "ubuntu"]
    assert "alice" not in "".join(file.content for file in accounts.values())


def test_user_has_ec2s_uid_and_groups(accounts: dict[str, HostFile]) -> None:
    assert accounts["/etc/passwd"].content.endswith("ubuntu:x:1000:1000:Ubuntu:/home/ubuntu:/bin/bash\n")
    assert accounts["/etc/group"].content.splitlines() == [
        "root:x:0:", "sudo:x:27:ubuntu", "video:x:44:ubuntu", "docker:x:998:", "nogroup:x:65534:", "ubuntu:x:1000:",
    ]  # fmt: skip


def test_no_account_has_a_password_and_none_is_locked(accounts: dict[str, HostFile]) -> None:
    shadow = accounts["/etc/shadow"]
    assert shadow.mode == 0o640
    assert {line.split(":")[1] for line in shadow.content.splitlines()} == {"*"}


def test_key_is_for_its_owner_alone() -> None:
    key = by_path(render_home("ssh-ed25519 AAAA me@here\n\n"))["/home/ubuntu/.ssh/authorized_keys"]
    assert key.content == "ssh-ed25519 AAAA me@here\n"
    assert (key.mode, key.directory_mode, key.uid) == (0o600, 0o700, 1000)


def test_no_key_no_authorized_keys() -> None:
    assert "/home/ubuntu/.ssh/authorized_keys" not in by_path(render_home(""))


def test_name_is_found_under_its_own_address() -> None:
    files = by_path(render_identity("ip-10-1-2-3", "10.1.2.3", "00ff"))
    assert files["/etc/hosts"].content.splitlines()[1] == "10.1.2.3 ip-10-1-2-3.ec2.internal ip-10-1-2-3"
    assert files["/etc/hostname"].content == "ip-10-1-2-3\n"


def test_services() -> None:
    files = by_path(render_services("PEM\n"))
    config = files["/etc/ssh/sshd_config"].content.splitlines()
    for line in ("UsePAM no", "PasswordAuthentication no", "UseDNS no", "MaxStartups 100"):
        assert line in config
    assert files["/etc/ssl/certs/ca-certificates.crt"].append
    assert {file.mode for path, file in files.items() if "sudoers" in path} == {0o440}


@pytest.mark.parametrize("public_ip", ["198.18.0.9", None])
def test_network(public_ip: str | None) -> None:
    batch = render_network(IPv4Interface("10.1.2.3/16"), public_ip, "198.18.0.0/20", 9001).splitlines()
    assert "addr add 10.1.2.3/16 brd + dev eth0" in batch
    assert "route add 169.254.169.254/32 dev eth0 src 10.1.2.3" in batch
    # As behind EC2's gateway: to public addresses from the public one, and not at all without one.
    assert ("route add 198.18.0.0/20 dev eth0 src 198.18.0.9" in batch) == (public_ip is not None)
    assert ("addr add 198.18.0.9/32 dev lo" in batch) == (public_ip is not None)
    assert not [line for line in batch if "None" in line or "default" in line]
